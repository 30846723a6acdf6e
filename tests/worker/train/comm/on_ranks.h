// Ranks on the CPU, joined by a TCP ring, without a job.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/comm/comm.h"

namespace nsa::train {

// Runs `body` in a thread for each of `world` ranks, which know their number from the Comm.
inline void OnRanks(int world, const std::function<void(Comm* comm)>& body,
                    absl::Duration timeout = absl::Seconds(60)) {
  const TempDir meeting;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      const auto comm = ConnectTcp({.rank = rank,
                                    .world_size = world,
                                    .rendezvous_dir = meeting.path(),
                                    .timeout = timeout});
      ASSERT_OK(comm.status());
      body(comm->get());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace nsa::train

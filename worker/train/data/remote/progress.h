// What the thread that reads data and the thread that waits for it share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace nsa::train {

class Remote;

struct ReadProgress {
  std::atomic<int64_t> bytes{0};  // read from files or turned into tokens so far
  // Set when the waiting thread has given up; reading then returns Cancelled.
  std::atomic<bool> cancelled{false};
  // Reads URLs (remote/remote.h). Null: only local files are read.
  std::shared_ptr<Remote> remote;
};

}  // namespace nsa::train

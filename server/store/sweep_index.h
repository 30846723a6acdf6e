// The jobs of each sweep (SweepSpec), for JobStore, which calls everything here under its lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

class SweepIndex {
 public:
  using Job = std::shared_ptr<const v1::StoredJob>;

  // Adds the job with this number, or replaces what it was before. Jobs without a sweep are
  // ignored.
  void Put(int64_t number, const Job& job);
  void Remove(int64_t number, const v1::Job& job);

  // FailedPrecondition (kSweepMismatch) when the sweep of this name has other settings, or already
  // has a job with this index.
  absl::Status Check(const v1::Job& job) const;

  // Every sweep with halve_at and a job that stopped and was not dropped; its jobs by number.
  std::vector<std::vector<Job>> Halved() const;

 private:
  using Key = std::pair<std::string, std::string>;  // owner, name
  static Key KeyOf(const v1::Job& job);

  std::map<Key, std::map<int64_t, Job>> sweeps_;
};

}  // namespace nsa::server

// Which machines may run ranks of one job together. They must have the same programs, or ranks
// might disagree about a step or not understand each other, GPUs of the same compute capability, or
// their kernels round differently, and clocks that agree, or times in logs and limits of time mean
// different things. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/preflight/preflight.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/job.pb.h"

namespace nsa::server {

// Clocks of machines that work together differ by no more than this.
inline constexpr absl::Duration kLargestClockDifference = absl::Seconds(1);

// What a machine has of that.
struct Makeup {
  std::string name;  // the machine's
  std::string worker_hash;
  std::string cuda_worker_hash;
  std::string driver;
  std::string nccl;
  std::string capability;  // compute capability of its GPUs: "8.0", "8.0 and 9.0"; empty without
  // Its clock minus the coordinator's; nothing if it is not known.
  std::optional<absl::Duration> clock_offset;
};

Makeup MakeupOf(const v1::NodeInfo& info, std::optional<absl::Duration> clock_offset);

// What must be equal for a job.
struct Demand {
  bool cuda = false;     // nsa-worker-cuda, driver, NCCL and GPUs, instead of nsa-worker
  bool programs = true;  // false: waived (MACHINES_DIFFER)
  bool clocks = true;    // false: waived (CLOCKS_DIFFER)
};

// The demand of a job with these waivers.
Demand DemandOf(const v1::JobSpec& spec, bool cuda);

// Machines that may work together, as places in `machines`, ascending.
using Group = std::vector<size_t>;

// Every largest group: none is part of another. Those with more machines come first; among equals
// the one whose first machine comes first. What is not known of a program is a value like any
// other: machines whose agents are too old to report are equal. A clock that is not known agrees
// with every clock.
std::vector<Group> Groups(const std::vector<Makeup>& machines, const Demand& demand);

// How machines differ: each machine outside the largest group, at most three, is compared with one
// in it. Empty if all machines may work together.
MachineDifferences DifferencesOf(const std::vector<Makeup>& machines, const Demand& demand);

}  // namespace nsa::server

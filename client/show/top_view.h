// What `nsactl top` shows, as a pure function of jobs, machines and the time.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

struct TopState {
  std::vector<v1::Job> active;  // newest first
  std::vector<v1::Job> ended;   // the newest few
  std::vector<v1::Node> nodes;
  bool connected = true;  // the coordinator can be reached
};

struct TopSize {
  int columns = 80;
  int rows = 24;
  bool colours = true;
};

// A line that sums up, a table of the jobs (what needs somebody first, then training ones, then
// those that wait, then those that have ended) and a table of the machines with their GPUs. No line
// is wider than the terminal, and there are fewer than `size.rows`: of too many jobs the last are
// left out, and a line says how many.
std::vector<std::string> TopView(const TopState& state, absl::Time now, const TopSize& size);

}  // namespace nsa::client

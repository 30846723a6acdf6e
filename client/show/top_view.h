// What `nsactl top` shows, as a pure function of jobs, machines and the time.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/job_status.pb.h"
#include "nsa/v1/node.pb.h"

namespace nsa::client {

struct TopState {
  std::vector<v1::Job> active;  // newest first
  std::vector<v1::Job> ended;   // the newest few
  std::vector<v1::Node> nodes;
  bool connected = true;  // the coordinator can be reached
};

// What somebody has chosen to see.
struct TopChoice {
  size_t order = 0;  // of kTopOrders
  bool reversed = false;
  std::string filter;    // JobQuery
  std::string selected;  // the id of a job that JobsShown() has; empty for a view without keys
  std::string last_line;
};

// By what the jobs can be ordered: what needs somebody first, then training ones, then those that
// wait, then those that have ended; or by their names or figures, the best first.
inline constexpr std::array kTopOrders = {"need",       "name",  "progress", "loss",
                                          "validation", "speed", "time left"};

struct TopSize {
  int columns = 80;
  int rows = 24;
  bool unicode = true;
  bool colours = true;
};

// The jobs that the filter lets through, in the chosen order.
std::vector<const v1::Job*> JobsShown(const TopState& state, const TopChoice& choice,
                                      absl::Time now);

// A line that sums up, a table of the jobs, a table of the machines with their GPUs, and the last
// line. No line is wider than the terminal, for which columns are left out and texts shortened, and
// there are fewer than `size.rows`: of too many jobs those around the selected one are shown, and a
// line says how many are not.
std::vector<std::string> TopView(const TopState& state, const TopChoice& choice, absl::Time now,
                                 const TopSize& size);

}  // namespace nsa::client

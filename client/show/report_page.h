// One job as one HTML file: `nsactl report`. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/show/curves.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::client {

// Everything that a report is made of.
struct Report {
  struct Sample {
    std::string prompt;
    std::string text;  // prompt and continuation; or why there is none
  };
  v1::Job job;
  std::string configuration;  // the job file with every default
  JobCurves curves;           // with marks
  std::vector<v1::JobEvent> events;
  std::vector<v1::CheckpointInfo> checkpoints;
  std::string checkpoints_problem;  // why they could not be listed; empty when they were
  std::vector<v1::SavedStacks> stacks;
  std::vector<v1::Node> nodes;  // those of the job's ranks
  std::vector<Sample> samples;
  std::string sampled_from;  // the checkpoint that wrote them
  v1::GetVersionResponse version;
  absl::Time now;
};

// The page: no script, nothing loaded from elsewhere (a policy in the page forbids both), light or
// dark as the reader's system is. Every text is escaped. Of more than 500 events the last 500 are
// in it.
std::string ReportPage(const Report& report);

}  // namespace nsa::client

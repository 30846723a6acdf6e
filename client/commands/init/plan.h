// The settings that `nsactl init` chooses, and how it follows what preflight says of them. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/commands/init/look.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/preflight.pb.h"

namespace nsa::client {

// The machine that the job is for.
struct InitMachine {
  std::string in_words;        // "gpu-1, NVIDIA H200"
  std::string device = "cpu";  // or the name of the GPU
  int32_t cores = 1;
  int64_t memory_bytes = 0;  // of the device; 0: not known

  bool cuda() const { return device != "cpu"; }
};

struct InitPlan {
  v1::JobSpec spec;
  FieldComments comments;
  double training_tokens = -1;   // about so many without those for validation; -1: not known
  bool limited_by_data = false;  // no more steps, because the data would be read too often
};

// A job that takes about `seconds` on the machine: the largest model that sees 20 tokens for each
// parameter in that time without reading the training text more than four times, sequences and
// attention for its size and the data's, the learning rates that preflight advises. What
// `data.spec` sets stays.
InitPlan PlanJob(const InitData& data, const InitMachine& machine, double seconds);

// Changes the job as the findings say: does what a fix names as a value ("set save_every: 100"),
// and else makes what is too large smaller. False if nothing could be done.
bool FollowFindings(const v1::PreflightReport& report, InitPlan* plan);

// The job file: `spec` with `heading` above it and comments behind its values. Where the data
// limits the steps, the comment says how often they read it.
std::string JobFileText(const InitPlan& plan, const std::vector<std::string>& heading);

}  // namespace nsa::client

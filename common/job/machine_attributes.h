// What machines have that jobs may require (resources.require). Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct Attributes {
  std::vector<std::string> gpus;  // models of its GPUs, each once
  int64_t gpu_memory_bytes = 0;   // of the smallest of them
  int64_t memory_bytes = 0;
  std::map<std::string, std::string> labels;
};

Attributes AttributesOf(const v1::NodeInfo& info);

using Requirements = std::map<std::string, std::string>;

Requirements RequirementsOf(const v1::JobSpec& spec);

// Whether a machine has all of it. All its GPUs must be of the required model and size: a rank may
// get any of them. Case and what stands between words do not count: `a100 80gb` is met by
// "NVIDIA A100-SXM4-80GB".
bool Meets(const Requirements& required, const Attributes& machine);

// Why none of the machines meets it: "gpu: h100 (2 machines with NVIDIA A100-SXM4-80GB)", or which
// requirements some machine meets but none together. Empty if one meets it all.
std::string UnmetText(const Requirements& required, const std::vector<Attributes>& machines);

}  // namespace nsa

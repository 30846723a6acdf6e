// env.json: what a run ran on.
#pragma once

#include <string>

#include "worker/train/telemetry/reporter.h"

namespace nsa {

// time, version, revision, host, kernel, processor, cores, memory (bytes, MiB and GiB), compiler,
// job id, generation, ranks, the spec, and the environment variables that matter (NSA_*, OMP_*,
// OPENBLAS_*, CUDA_*, NCCL_*): never all of them, they may hold secrets.
std::string EnvironmentJson(const ReporterOptions& options);

}  // namespace nsa

// The content of env.json: machine, program and job of a run.
#pragma once

#include <string>

#include "worker/train/telemetry/reporter.h"

namespace nsa::train {

// Time, version, revision, compiler, host, kernel, processor, cores, memory (bytes, MiB and GiB),
// device, process id, job id, generation, world size, resumed step, the spec, and the environment
// variables NSA_*, OMP_*, OPENBLAS_*, CUDA_* and NCCL_* as the run has them, with what the user had
// set where a variable of NCCL has another value. Other variables are left out because they may
// hold secrets; values of variables whose name contains TOKEN, SECRET, KEY or PASSWORD are
// replaced.
std::string EnvironmentJson(const ReporterOptions& options);

}  // namespace nsa::train

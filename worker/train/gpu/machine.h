// The processor of this machine, and the threads and memory of this process.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace nsa::train {

// FailedPrecondition when the processor lacks instructions that the kernels are compiled for (AVX2,
// FMA, …). To be called before any kernel.
absl::Status CheckProcessor();

// Makes OpenMP threads sleep instead of spin while they wait for one another. The OpenMP library
// reads OMP_WAIT_POLICY before main(), so this function sets it to passive and executes the program
// again in the same process. It does nothing when the variable is set already. To be called first
// in main(). Reason: with four runnable processes per core, spinning made a step five times as
// long.
void SleepWhileWaiting(char** argv);

// Sets the number of threads for kernels and OpenBLAS to `threads`; 0: as many as ThreadsOfEach()
// (common/base/cores.h) has for the ranks on this machine. Returns the number.
int SetThreads(int threads, int ranks_here);

// Bytes of memory in use, and their peak.
int64_t ResidentBytes();
int64_t PeakResidentBytes();

}  // namespace nsa::train

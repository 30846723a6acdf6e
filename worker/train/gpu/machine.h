// The processor of this machine, and the threads and memory of this process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace nsa::train {

// FailedPrecondition when the processor lacks instructions that the kernels are compiled for (AVX2,
// FMA, …). To be called before any kernel.
absl::Status CheckProcessor();

// Sets what OpenMP and OpenBLAS read from the environment before main(), and executes the program
// again in the same process if that changed anything. To be called first in main(). A variable that
// is set already stays.
//   OMP_WAIT_POLICY=passive: threads sleep instead of spin while they wait for one another. With
//     four runnable processes per core, spinning made a step five times as long.
//   OPENBLAS_CORETYPE: see CoreTypeFor().
void PrepareLibraries(char** argv);

// The OPENBLAS_CORETYPE that a processor needs whose kernels OpenBLAS has chosen as `chosen`
// (openblas_get_corename()); empty when the choice is good. A processor younger than the library is
// not known to it, and it takes kernels of 2004 without AVX ("Prescott"): OpenBLAS 0.3.21 on
// Sapphire Rapids made a step of a model 128 wide three times as long.
std::string CoreTypeFor(std::string_view chosen, bool has_avx512);

// Sets the number of threads for kernels and OpenBLAS to `threads`; 0: as many as ThreadsOfEach()
// (common/base/cores.h) has for the ranks on this machine. Returns the number.
int SetThreads(int threads, int ranks_here);

// Bytes of memory in use, and their peak.
int64_t ResidentBytes();
int64_t PeakResidentBytes();

}  // namespace nsa::train

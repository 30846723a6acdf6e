// This process and the processor it runs on.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace nsa {

// FailedPrecondition when the processor lacks what the kernels are compiled for (AVX2, FMA, …).
// To be called before any kernel.
absl::Status CheckProcessor();

// Makes threads that wait for one another sleep instead of spin: starts this program again, in the
// same process, with OMP_WAIT_POLICY=passive, which the OpenMP library reads before main() does.
// Returns at once when the variable is set already. First thing in main(). Spinning costs other
// processes of a shared machine more than it gains us: with four runnable processes a core a step
// took five times as long.
void SleepWhileWaiting(char** argv);

// Sets the threads of kernels and OpenBLAS: `threads`, or the cores of this process divided by the
// ranks when 0. Returns the number.
int SetThreads(int threads, int ranks_here);

// Bytes of memory in use, and the most that ever were.
int64_t ResidentBytes();
int64_t PeakResidentBytes();

}  // namespace nsa

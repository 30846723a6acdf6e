// The processor cores of this process, and how many threads its work may take.
#pragma once

namespace nsa {

// Number of cores that this process may use (its CPU affinity), at least 1.
int UsableCores();

// Threads for each of `processes` that share these cores: an equal part, at least 1.
// The first number of OMP_NUM_THREADS in the environment can lower it but not raise
// it.
int ThreadsOfEach(int processes);

}  // namespace nsa

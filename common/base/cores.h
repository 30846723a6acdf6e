// The processor cores of this process, and how many threads its work may take.
#pragma once

#include <filesystem>
#include <vector>

namespace nsa {

// Number of cores that this process may use, at least 1: those of its CPU affinity, or fewer if a
// CPU quota of its control groups allows less time than they have.
int UsableCores();

// The cores whose whole time the least CPU quota of these control groups allows, rounded up; 0 if
// none has a quota. Reads cpu.max, and cpu.cfs_quota_us of version 1.
int CoresOfQuota(const std::vector<std::filesystem::path>& groups);

// Threads for each of `processes` that share these cores: an equal part, at least 1.
// The first number of OMP_NUM_THREADS in the environment can lower it but not raise
// it.
int ThreadsOfEach(int processes);

}  // namespace nsa

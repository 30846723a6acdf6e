// A stand-in for libnccl.so.2 that a test loads by its file name: communicators between threads of
// one process, in host memory. Tests change its behaviour ("mood") with FakeNcclSet, which they
// find with dlsym in the same library.
#pragma once

#include <cstdint>

extern "C" {

enum FakeNcclMood : int {
  kFakeWell = 0,           // sums as soon as every rank has called; does nothing before that
  kFakeNeverJoins = 1,     // ncclCommInitRankConfig stays in progress
  kFakeRemoteError = 2,    // communicators report ncclRemoteError once a sum is enqueued
  kFakeRefusesSums = 3,    // ncclAllReduce, ncclSend and ncclRecv return ncclInvalidArgument
  kFakeAbortHangs = 4,     // ncclCommAbort does not return for ten seconds
  kFakeSlowToEnqueue = 5,  // ncclAllReduce stays in progress for the first few queries
};

// Sets the mood of all communicators in the process. Resets the counters.
using FakeNcclSetFunction = void (*)(int mood);

// What the library writes into the file that NCCL_DEBUG_FILE names when it is loaded, as NCCL does:
// with each communicator, and with the first sum of one. Null: nothing.
using FakeNcclSayFunction = void (*)(const char* joining, const char* connecting);

struct FakeNcclCounts {
  int64_t joined = 0, sums = 0, exchanges = 0, aborted = 0, destroyed = 0, looks = 0;
};
using FakeNcclReadFunction = void (*)(FakeNcclCounts* counts);

// Whether every rank has called the sum that was last enqueued on `stream`, and all that it
// receives has been sent. Tests use the address of any variable as a stream.
using FakeNcclDoneFunction = bool (*)(void* stream);
}

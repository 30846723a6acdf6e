// A stand-in for libnccl.so.2 that a test loads by its file name: communicators between threads of
// one process, over memory of the host. Its moods are set through FakeNcclSet, which the test finds
// by dlsym in the same library.
#pragma once

#include <cstdint>

extern "C" {

enum FakeNcclMood : int {
  kFakeWell = 0,           // sums as soon as every rank has come; nothing is done before that
  kFakeNeverJoins = 1,     // ncclCommInitRankConfig stays in progress
  kFakeRemoteError = 2,    // communicators report ncclRemoteError once a sum is enqueued
  kFakeRefusesSums = 3,    // ncclAllReduce returns ncclInvalidArgument
  kFakeAbortHangs = 4,     // ncclCommAbort does not return for ten seconds
  kFakeSlowToEnqueue = 5,  // ncclAllReduce is in progress for a few looks
};

// For all communicators of the process. Counters start again.
using FakeNcclSetFunction = void (*)(int mood);

struct FakeNcclCounts {
  int64_t joined = 0, sums = 0, aborted = 0, destroyed = 0, looks = 0;
};
using FakeNcclReadFunction = void (*)(FakeNcclCounts* counts);

// Whether every rank has come to the sum that `stream` was last given to; a test uses the address
// of a variable of its own as a stream.
using FakeNcclDoneFunction = bool (*)(void* stream);
}

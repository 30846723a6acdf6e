#include "tests/testing/fakes/fake_nccl.h"

#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22809
#endif

namespace {

enum Result : int { kSuccess = 0, kInvalidArgument = 4, kRemoteError = 6, kInProgress = 7 };

struct UniqueId {
  char bytes[128];
};

// A sum, which the ranks join one after another.
struct Sum {
  std::vector<float*> came;
  std::vector<size_t> counts;
};

struct Communicator {
  int64_t gang;
  int world_size;
  int64_t next_sum = 0;
  int looks_until_settled = 0;
  bool enqueued = false;
};

struct World {
  std::mutex mutex;
  int mood = kFakeWell;
  FakeNcclCounts counts;
  int64_t gangs = 0;
  std::map<std::pair<int64_t, int64_t>, Sum> sums;                    // by gang and number
  std::map<void*, std::pair<std::pair<int64_t, int64_t>, int>> last;  // stream → sum, world size
};

World& TheWorld() {
  static World world;
  return world;
}

void AddUp(Sum* sum) {
  for (size_t i = 0; i < sum->counts.front(); ++i) {
    float total = 0;
    for (const float* values : sum->came) total += values[i];
    for (float* values : sum->came) values[i] = total;
  }
}

}  // namespace

extern "C" {

void FakeNcclSet(int mood) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  world.mood = mood;
  world.counts = {};
}

void FakeNcclRead(FakeNcclCounts* counts) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  *counts = world.counts;
}

bool FakeNcclDone(void* stream) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  const auto last = world.last.find(stream);
  if (last == world.last.end()) return true;
  const auto& [sum, world_size] = last->second;
  return static_cast<int>(world.sums[sum].came.size()) == world_size;
}

int ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return kSuccess;
}

int ncclGetUniqueId(UniqueId* id) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  const int64_t gang = ++world.gangs;
  std::memset(id, 0x5a, sizeof(*id));
  std::memcpy(id->bytes, &gang, sizeof(gang));
  return kSuccess;
}

int ncclCommInitRankConfig(Communicator** communicator, int world_size, UniqueId id, int,
                           const void* config) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  int blocking = 1;
  std::memcpy(&blocking, static_cast<const char*>(config) + 16, sizeof(blocking));
  if (id.bytes[127] != 0x5a || blocking != 0) return kInvalidArgument;
  *communicator = new Communicator{.world_size = world_size};
  std::memcpy(&(*communicator)->gang, id.bytes, sizeof(int64_t));
  (*communicator)->looks_until_settled = world.mood == kFakeNeverJoins ? 1 << 30 : 3;
  ++world.counts.joined;
  return kInProgress;
}

int ncclCommGetAsyncError(Communicator* communicator, int* state) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  ++world.counts.looks;
  *state = kSuccess;
  if (communicator->looks_until_settled > 0) {
    --communicator->looks_until_settled;
    *state = kInProgress;
  } else if (world.mood == kFakeRemoteError && communicator->enqueued) {
    *state = kRemoteError;
  }
  return kSuccess;
}

int ncclAllReduce(const void*, void* receive, size_t count, int type, int op,
                  Communicator* communicator, void* stream) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  if (world.mood == kFakeRefusesSums || type != 7 || op != 0) return kInvalidArgument;
  communicator->enqueued = true;
  const std::pair<int64_t, int64_t> key = {communicator->gang, communicator->next_sum++};
  Sum& sum = world.sums[key];
  sum.came.push_back(static_cast<float*>(receive));
  sum.counts.push_back(count);
  world.last[stream] = {key, communicator->world_size};
  ++world.counts.sums;
  if (static_cast<int>(sum.came.size()) == communicator->world_size) AddUp(&sum);
  if (world.mood != kFakeSlowToEnqueue) return kSuccess;
  communicator->looks_until_settled = 5;
  return kInProgress;
}

int ncclCommDestroy(Communicator* communicator) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  ++world.counts.destroyed;
  delete communicator;
  return kSuccess;
}

#ifndef FAKE_NCCL_WITHOUT_ABORT
int ncclCommAbort(Communicator* communicator) {
  World& world = TheWorld();
  bool hang = false;
  {
    const std::lock_guard<std::mutex> lock(world.mutex);
    ++world.counts.aborted;
    hang = world.mood == kFakeAbortHangs;
  }
  if (hang) sleep(10);
  delete communicator;
  return kSuccess;
}
#endif

const char* ncclGetErrorString(int result) {
  return result == kRemoteError ? "remote process exited" : "made-up error";
}

const char* ncclGetLastError(Communicator*) { return "fake detail"; }
}

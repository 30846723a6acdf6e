#include "tests/testing/fakes/fake_nccl.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22809
#endif

namespace {

enum Result : int { kSuccess = 0, kInvalidArgument = 4, kRemoteError = 6, kInProgress = 7 };

struct UniqueId {
  char bytes[128];
};

struct Communicator;

// A collective, which the ranks join one after another.
struct Sum {
  struct Part {
    int rank;
    const void* send;
    void* receive;
  };
  std::vector<Part> came;
  size_t count = 0;
  int type = 0;
  int root = -1;        // −1: every rank gets the sums
  bool copies = false;  // the root's bytes instead of sums
};

// A send or receive between ncclGroupStart and ncclGroupEnd.
struct Transfer {
  Communicator* communicator;
  int peer;
  const void* send;  // or null
  void* receive;
  size_t bytes;
  void* stream;
};

// From one rank to another: bytes that were sent and not received, and receives that wait for them.
struct Pipe {
  std::deque<std::vector<char>> sent;
  std::deque<Transfer> waiting;
};

struct Communicator {
  int64_t gang = 0;
  int rank = 0;
  int world_size = 0;
  int64_t next_sum = 0;
  int looks_until_settled = 0;
  bool enqueued = false;
};

struct World {
  std::mutex mutex;
  int mood = kFakeWell;
  FakeNcclCounts counts;
  std::string joining, connecting;  // for the log
  int64_t gangs = 0;
  std::map<std::pair<int64_t, int64_t>, Sum> sums;                    // by gang and number
  std::map<void*, std::pair<std::pair<int64_t, int64_t>, int>> last;  // stream → sum, world size
  std::map<std::tuple<int64_t, int, int>, Pipe> pipes;                // by gang, source and target
  std::map<void*, int64_t> waiting;                                   // receives of a stream
};

World& TheWorld() {
  static World world;
  return world;
}

// Like NCCL, which opens the file once and for all.
void Say(const std::string& text) {
  static FILE* const log = [] {
    const char* const file = std::getenv("NCCL_DEBUG_FILE");
    return file == nullptr ? nullptr : std::fopen(file, "w");
  }();
  if (log == nullptr || text.empty()) return;
  std::fwrite(text.data(), 1, text.size(), log);
  std::fflush(log);
}

constexpr int kInt8 = 0, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9;

size_t SizeOf(int type) {
  switch (type) {
    case kInt8:
      return 1;
    case kFloat32:
      return 4;
    case kFloat64:
      return 8;
    default:
      return 2;
  }
}

// bf16 is the upper half of a float; sums of the tests are exact.
double Load(const void* values, int type, size_t i) {
  if (type == kFloat32) return static_cast<const float*>(values)[i];
  if (type == kFloat64) return static_cast<const double*>(values)[i];
  const uint32_t bits = uint32_t{static_cast<const uint16_t*>(values)[i]} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

void Store(double value, void* values, int type, size_t i) {
  if (type == kFloat64) {
    static_cast<double*>(values)[i] = value;
    return;
  }
  const auto narrow = static_cast<float>(value);
  if (type == kFloat32) {
    static_cast<float*>(values)[i] = narrow;
    return;
  }
  uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof(bits));
  static_cast<uint16_t*>(values)[i] = static_cast<uint16_t>(bits >> 16);
}

void Conclude(const Sum& sum) {
  if (sum.copies) {
    const auto root = std::find_if(sum.came.begin(), sum.came.end(),
                                   [&sum](const Sum::Part& part) { return part.rank == sum.root; });
    for (const Sum::Part& part : sum.came) {
      std::memmove(part.receive, root->send, sum.count * SizeOf(sum.type));
    }
    return;
  }
  for (size_t i = 0; i < sum.count; ++i) {
    double total = 0;
    for (const Sum::Part& part : sum.came) total += Load(part.send, sum.type, i);
    for (const Sum::Part& part : sum.came) {
      if (sum.root < 0 || part.rank == sum.root) Store(total, part.receive, sum.type, i);
    }
  }
}

// A rank joins a collective; the last one does it.
int Join(Communicator* communicator, const Sum& what, const void* send, void* receive,
         void* stream) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  const bool known =
      what.copies ? what.type == kInt8 : what.type >= kFloat32 && what.type <= kBfloat16;
  if (world.mood == kFakeRefusesSums || !known) return kInvalidArgument;
  if (!communicator->enqueued) Say(world.connecting);
  communicator->enqueued = true;
  const std::pair<int64_t, int64_t> key = {communicator->gang, communicator->next_sum++};
  Sum& sum = world.sums[key];
  if (sum.came.empty()) sum = what;
  if (sum.root != what.root || sum.count != what.count) return kInvalidArgument;
  sum.came.push_back({communicator->rank, send, receive});
  world.last[stream] = {key, communicator->world_size};
  ++world.counts.sums;
  if (static_cast<int>(sum.came.size()) == communicator->world_size) Conclude(sum);
  if (world.mood != kFakeSlowToEnqueue) return kSuccess;
  communicator->looks_until_settled = 5;
  return kInProgress;
}

thread_local int open_groups = 0;
thread_local std::vector<Transfer> group;

void Deliver(World* world, Pipe* pipe) {
  while (!pipe->sent.empty() && !pipe->waiting.empty()) {
    const Transfer to = pipe->waiting.front();
    std::memcpy(to.receive, pipe->sent.front().data(), to.bytes);
    pipe->sent.pop_front();
    pipe->waiting.pop_front();
    --world->waiting[to.stream];
  }
}

void Enqueue(World* world, const Transfer& t) {
  const int64_t gang = t.communicator->gang;
  const int rank = t.communicator->rank;
  if (t.send != nullptr) {
    Pipe* const pipe = &world->pipes[{gang, rank, t.peer}];
    const char* const bytes = static_cast<const char*>(t.send);
    pipe->sent.emplace_back(bytes, bytes + t.bytes);
    Deliver(world, pipe);
  } else {
    Pipe* const pipe = &world->pipes[{gang, t.peer, rank}];
    pipe->waiting.push_back(t);
    ++world->waiting[t.stream];
    Deliver(world, pipe);
  }
}

int AddToGroup(const Transfer& transfer, int type) {
  const bool fits = type == 1 && open_groups > 0 && transfer.peer >= 0 &&
                    transfer.peer < transfer.communicator->world_size;
  if (!fits || TheWorld().mood == kFakeRefusesSums) return kInvalidArgument;
  group.push_back(transfer);
  return kSuccess;
}

}  // namespace

extern "C" {

void FakeNcclSet(int mood) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  world.mood = mood;
  world.counts = {};
}

void FakeNcclSay(const char* joining, const char* connecting) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  world.joining = joining == nullptr ? "" : joining;
  world.connecting = connecting == nullptr ? "" : connecting;
}

void FakeNcclRead(FakeNcclCounts* counts) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  *counts = world.counts;
}

bool FakeNcclDone(void* stream) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  if (world.waiting[stream] > 0) return false;
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

int ncclCommInitRankConfig(Communicator** communicator, int world_size, UniqueId id, int rank,
                           const void* config) {
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  int blocking = 1;
  std::memcpy(&blocking, static_cast<const char*>(config) + 16, sizeof(blocking));
  if (id.bytes[127] != 0x5a || blocking != 0) return kInvalidArgument;
  *communicator = new Communicator{.rank = rank, .world_size = world_size};
  std::memcpy(&(*communicator)->gang, id.bytes, sizeof(int64_t));
  (*communicator)->looks_until_settled = world.mood == kFakeNeverJoins ? 1 << 30 : 3;
  ++world.counts.joined;
  Say(world.joining);
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

int ncclAllReduce(const void* send, void* receive, size_t count, int type, int op,
                  Communicator* communicator, void* stream) {
  if (op != 0) return kInvalidArgument;
  return Join(communicator, {.count = count, .type = type}, send, receive, stream);
}

int ncclReduce(const void* send, void* receive, size_t count, int type, int op, int root,
               Communicator* communicator, void* stream) {
  if (op != 0) return kInvalidArgument;
  return Join(communicator, {.count = count, .type = type, .root = root}, send, receive, stream);
}

int ncclBroadcast(const void* send, void* receive, size_t count, int type, int root,
                  Communicator* communicator, void* stream) {
  return Join(communicator, {.count = count, .type = type, .root = root, .copies = true}, send,
              receive, stream);
}

int ncclGroupStart() {
  ++open_groups;
  return kSuccess;
}

int ncclSend(const void* send, size_t count, int type, int peer, Communicator* communicator,
             void* stream) {
  return AddToGroup({communicator, peer, send, nullptr, count, stream}, type);
}

int ncclRecv(void* receive, size_t count, int type, int peer, Communicator* communicator,
             void* stream) {
  return AddToGroup({communicator, peer, nullptr, receive, count, stream}, type);
}

int ncclGroupEnd() {
  if (--open_groups > 0 || group.empty()) return kSuccess;
  World& world = TheWorld();
  const std::lock_guard<std::mutex> lock(world.mutex);
  for (const Transfer& transfer : group) Enqueue(&world, transfer);
  Communicator* const communicator = group.front().communicator;
  group.clear();
  communicator->enqueued = true;
  ++world.counts.exchanges;
  communicator->looks_until_settled = 2;
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

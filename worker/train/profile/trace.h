// What a rank does during a few steps, for `nsactl profile`: ranges of time and samples of memory,
// in memory until they are written as a file that https://ui.perfetto.dev opens.
//
// The file is gzip of Chrome's trace event format (JSON object form), one event a line, so that a
// reader needs one line in memory at a time:
//
//   {"displayTimeUnit":"ms","otherData":{…},"traceEvents":[
//   {"ph":"X","name":"forward","cat":"phase","pid":0,"tid":1,"ts":12.345,"dur":6.789,"args":{…}},
//   …
//   ]}
//
// `ts` and `dur` are microseconds; 0 is `base_unix_nanos` of otherData, a time of the wall clock.
// pid is the rank, tid the track. Source of the format: "Trace Event Format", Google, 2016.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace nsa::train {

// Most events of one rank's trace; later ones, except steps, are counted and left out.
inline constexpr size_t kMostTraceEvents = 500'000;

// What an event is; its word is the event's "cat".
enum class TraceKind : uint8_t {
  kStep,           // value: the step
  kPhase,          // value: the micro-batch
  kLayer,          // value: the layer
  kKernel,         // on the host: until the next kernel begins
  kCollective,     // on the host: from its call to its end
  kGpuKernel,      // detail: how it was launched
  kGpuCollective,  // the same, for kernels of NCCL
  kCopy,           // value: bytes
  kSet,            // value: bytes
  kMemory,         // a sample, not a range; value: bytes
};

// Tracks of the host. Streams of a GPU are kStreamTrack plus the stream's number.
inline constexpr int32_t kTrainingTrack = 1;    // step, phase, layer and kernel, nested
inline constexpr int32_t kCollectiveTrack = 2;  // they may overlap kernels on a GPU
inline constexpr int32_t kStreamTrack = 100;

// How a kernel was launched. Shared memory in bytes per block, static and dynamic together.
struct KernelLaunch {
  int32_t grid[3] = {};
  int32_t block[3] = {};
  int32_t registers = 0;  // per thread
  int32_t shared_bytes = 0;
  uint64_t graph_node = 0;  // 0: launched outside of a CUDA graph
};

// Times are nanoseconds of CLOCK_MONOTONIC.
struct TraceEvent {
  TraceKind kind = TraceKind::kStep;
  int32_t track = kTrainingTrack;
  uint32_t name = 0;  // Trace::Name()
  int64_t begin = 0;
  int64_t end = 0;
  int64_t value = 0;
  int32_t launch = -1;  // Trace::Launch(); −1: none
};

// Not thread-safe.
class Trace {
 public:
  explicit Trace(size_t most_events = kMostTraceEvents) : most_events_(most_events) {}

  // A number for this name: the same for the same name.
  uint32_t Name(std::string_view name);
  int32_t Launch(const KernelLaunch& launch);
  void Add(const TraceEvent& event);

  const std::vector<TraceEvent>& events() const { return events_; }
  const std::string& name(uint32_t number) const { return names_[number]; }
  const KernelLaunch& launch(int32_t number) const {
    return launches_[static_cast<size_t>(number)];
  }
  bool full() const { return events_.size() >= most_events_; }
  int64_t dropped() const { return dropped_; }
  void AddDropped(int64_t events) { dropped_ += events; }

 private:
  const size_t most_events_;
  std::vector<TraceEvent> events_;
  std::vector<KernelLaunch> launches_;
  std::vector<std::string> names_;
  std::map<std::string, uint32_t, std::less<>> numbers_;
  int64_t dropped_ = 0;
};

// otherData of the file.
struct TraceHeader {
  int32_t rank = 0;
  std::string host;
  int64_t first_step = 0;
  int64_t last_step = 0;           // 0: none was recorded
  int32_t asked_steps = 0;         // more than were recorded if the run ended before
  int64_t base_monotonic = 0;      // CLOCK_MONOTONIC at ts 0, nanoseconds
  int64_t base_unix_nanos = 0;     // the wall clock at that moment
  std::vector<std::string> notes;  // what the trace lacks and why, human-readable
};

// Writes the file under a temporary name and renames it, so that a reader sees a whole file or
// none. ResourceExhausted or the error of the file system when it cannot be written.
absl::Status WriteTrace(const Trace& trace, const TraceHeader& header,
                        const std::filesystem::path& path);

// The line of one event, without a comma. For WriteTrace() and tests.
std::string EventLine(const Trace& trace, const TraceHeader& header, const TraceEvent& event);

}  // namespace nsa::train

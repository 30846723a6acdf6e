#include "worker/train/profile/trace.h"

#include <cxxabi.h>
#include <zlib.h>

#include <cerrno>
#include <cstdlib>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::train {
namespace {

constexpr size_t kLongestName = 200;

const char* Word(TraceKind kind) {
  switch (kind) {
    case TraceKind::kStep:
      return "step";
    case TraceKind::kPhase:
      return "phase";
    case TraceKind::kLayer:
      return "layer";
    case TraceKind::kKernel:
      return "kernel";
    case TraceKind::kCollective:
      return "collective";
    case TraceKind::kGpuKernel:
      return "gpu_kernel";
    case TraceKind::kGpuCollective:
      return "gpu_collective";
    case TraceKind::kCopy:
      return "gpu_copy";
    case TraceKind::kSet:
      return "gpu_set";
    case TraceKind::kMemory:
      return "memory";
  }
  return "unknown";
}

// A JSON string with its quotes; bytes that are no UTF-8 are replaced.
std::string Quoted(std::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// `name` of a function without its parameters, its type of result and "(anonymous namespace)::",
// which make the names of kernels several lines long: "void nsa::Mark<(nsa::Branch)1>(int*)" is
// "nsa::Mark<(nsa::Branch)1>".
std::string WithoutParameters(std::string name) {
  if (name.ends_with(')')) {
    int depth = 0;
    for (size_t i = name.size(); i-- > 0;) {
      depth += name[i] == ')' ? 1 : name[i] == '(' ? -1 : 0;
      if (depth == 0) {
        name.resize(i);
        break;
      }
    }
  }
  if (name.starts_with("void ")) name.erase(0, 5);
  return absl::StrReplaceAll(name, {{"(anonymous namespace)::", ""}});
}

// The name of a kernel as in its source: "_ZN3nsa4MarkEPi" is "nsa::Mark".
std::string Readable(const std::string& name) {
  int status = -1;
  char* const plain = name.compare(0, 2, "_Z") == 0
                          ? abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status)
                          : nullptr;
  std::string text = status == 0 && plain != nullptr ? WithoutParameters(plain) : name;
  std::free(plain);
  return CutText(text, kLongestName);
}

std::string ArgsOf(const Trace& trace, const TraceEvent& event) {
  switch (event.kind) {
    case TraceKind::kStep:
      return absl::StrCat("\"step\":", event.value);
    case TraceKind::kPhase:
      return absl::StrCat("\"micro_batch\":", event.value);
    case TraceKind::kLayer:
      return absl::StrCat("\"layer\":", event.value);
    case TraceKind::kCopy:
    case TraceKind::kSet:
    case TraceKind::kMemory:
      return absl::StrCat("\"bytes\":", event.value);
    case TraceKind::kGpuKernel:
    case TraceKind::kGpuCollective:
      break;
    case TraceKind::kKernel:
    case TraceKind::kCollective:
      return "";
  }
  if (event.launch < 0) return "";
  const KernelLaunch& launch = trace.launch(event.launch);
  return absl::StrFormat(
      "\"grid\":[%d,%d,%d],\"block\":[%d,%d,%d],\"registers\":%d,\"shared_bytes\":%d,"
      "\"graph_node\":%d",
      launch.grid[0], launch.grid[1], launch.grid[2], launch.block[0], launch.block[1],
      launch.block[2], launch.registers, launch.shared_bytes, launch.graph_node);
}

std::string Microseconds(int64_t nanos) {
  return absl::StrFormat("%.3f", static_cast<double>(nanos) * 1e-3);
}

std::string TrackName(int32_t track) {
  if (track == kTrainingTrack) return "training";
  if (track == kCollectiveTrack) return "collectives";
  return absl::StrCat("GPU stream ", track - kStreamTrack);
}

std::string FirstLine(const Trace& trace, const TraceHeader& header) {
  nlohmann::ordered_json other = {{"rank", header.rank},
                                  {"host", header.host},
                                  {"first_step", header.first_step},
                                  {"last_step", header.last_step},
                                  {"asked_steps", header.asked_steps},
                                  {"base_unix_nanos", std::to_string(header.base_unix_nanos)},
                                  {"dropped_events", trace.dropped()},
                                  {"notes", header.notes}};
  return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"otherData\":",
                      other.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                      ",\"traceEvents\":[\n");
}

// Names of the process and its tracks.
std::vector<std::string> MetadataLines(const Trace& trace, const TraceHeader& header) {
  const auto line = [&](const char* what, int32_t track, const std::string& args) {
    return absl::StrFormat("{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{%s}}",
                           what, header.rank, track, args);
  };
  std::vector<std::string> lines = {
      line("process_name", 0,
           absl::StrCat("\"name\":",
                        Quoted(absl::StrCat("rank ", header.rank, " (", header.host, ")")))),
      line("process_sort_index", 0, absl::StrCat("\"sort_index\":", header.rank))};
  std::set<int32_t> tracks;
  for (const TraceEvent& event : trace.events()) {
    if (event.kind != TraceKind::kMemory) tracks.insert(event.track);
  }
  for (const int32_t track : tracks) {
    lines.push_back(
        line("thread_name", track, absl::StrCat("\"name\":", Quoted(TrackName(track)))));
    lines.push_back(line("thread_sort_index", track, absl::StrCat("\"sort_index\":", track)));
  }
  return lines;
}

class GzipFile {
 public:
  explicit GzipFile(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "wb4")) {}
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;
  ~GzipFile() {
    if (file_ != nullptr) gzclose(file_);
  }

  void Write(std::string_view text) {
    if (file_ == nullptr || failed_) return;
    failed_ = gzwrite(file_, text.data(), static_cast<unsigned>(text.size())) !=
              static_cast<int>(text.size());
  }

  // ENOSPC and the like may show up only here.
  absl::Status Close() {
    const bool opened = file_ != nullptr;
    const bool closed = opened && gzclose(file_) == Z_OK;
    file_ = nullptr;
    if (opened && closed && !failed_) return absl::OkStatus();
    const int why = errno == 0 ? EIO : errno;
    return absl::ErrnoToStatus(why, absl::StrCat("profile: ", path_));
  }

 private:
  const std::string path_;
  gzFile file_;
  bool failed_ = false;
};

}  // namespace

uint32_t Trace::Name(std::string_view name) {
  const auto found = numbers_.find(name);
  if (found != numbers_.end()) return found->second;
  const auto number = static_cast<uint32_t>(names_.size());
  names_.emplace_back(name);
  numbers_.emplace(name, number);
  return number;
}

int32_t Trace::Launch(const KernelLaunch& launch) {
  if (full()) return -1;
  launches_.push_back(launch);
  return static_cast<int32_t>(launches_.size()) - 1;
}

void Trace::Add(const TraceEvent& event) {
  // Steps are few and always kept: what is counted per step needs them.
  if (full() && event.kind != TraceKind::kStep) {
    ++dropped_;
    return;
  }
  events_.push_back(event);
}

std::string EventLine(const Trace& trace, const TraceHeader& header, const TraceEvent& event) {
  const std::string name = Quoted(Readable(trace.name(event.name)));
  const std::string begin = Microseconds(event.begin - header.base_monotonic);
  const std::string args = ArgsOf(trace, event);
  if (event.kind == TraceKind::kMemory) {
    return absl::StrFormat("{\"ph\":\"C\",\"name\":%s,\"pid\":%d,\"ts\":%s,\"args\":{%s}}", name,
                           header.rank, begin, args);
  }
  return absl::StrFormat(
      "{\"ph\":\"X\",\"name\":%s,\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%s,\"dur\":%s,"
      "\"args\":{%s}}",
      name, Word(event.kind), header.rank, event.track, begin,
      Microseconds(event.end - event.begin), args);
}

absl::Status WriteTrace(const Trace& trace, const TraceHeader& header,
                        const std::filesystem::path& path) {
  const std::string temporary = path.string() + ".tmp";
  errno = 0;
  GzipFile file(temporary);
  file.Write(FirstLine(trace, header));
  bool first = true;
  const auto add = [&](const std::string& line) {
    file.Write(first ? "" : ",\n");
    file.Write(line);
    first = false;
  };
  for (const std::string& line : MetadataLines(trace, header)) add(line);
  for (const TraceEvent& event : trace.events()) add(EventLine(trace, header, event));
  file.Write("\n]}\n");
  absl::Status status = file.Close();
  std::error_code error;
  if (status.ok()) {
    std::filesystem::rename(temporary, path, error);
    if (error) {
      status = absl::ErrnoToStatus(error.value(), absl::StrCat("profile: ", path.string()));
    }
  }
  if (!status.ok()) std::filesystem::remove(temporary, error);
  return status;
}

}  // namespace nsa::train

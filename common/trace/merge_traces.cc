#include "common/trace/merge_traces.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLongestLine = 64 << 10;
constexpr int64_t kMostLines = 2'000'000;
constexpr std::string_view kLastLine = "]}";

// The lines of a compressed file.
class GzipLines {
 public:
  explicit GzipLines(const Fd& file) {
    lseek(file.get(), 0, SEEK_SET);
    const int copy = dup(file.get());
    file_ = gzdopen(copy, "rb");
    if (file_ == nullptr && copy >= 0) close(copy);
  }
  GzipLines(const GzipLines&) = delete;
  GzipLines& operator=(const GzipLines&) = delete;
  ~GzipLines() {
    if (file_ != nullptr) gzclose(file_);
  }

  // False at the end, after an error, and at a line that is too long or one too many.
  bool Next(std::string* line) {
    if (file_ == nullptr || ++lines_ > kMostLines) return false;
    if (gzgets(file_, buffer_.data(), static_cast<int>(buffer_.size())) == nullptr) return false;
    *line = buffer_.data();
    if (line->empty() || line->back() != '\n') return false;
    line->pop_back();
    return true;
  }

 private:
  gzFile file_ = nullptr;
  int64_t lines_ = 0;
  // Not on the stack: threads of the coordinator's page have 100 KB.
  std::vector<char> buffer_ = std::vector<char>(kLongestLine);
};

// Passes text on in larger pieces, compressed unless it shall be `plain`.
class Compressor {
 public:
  Compressor(const std::function<absl::Status(std::string_view)>& write, bool plain)
      : write_(write), plain_(plain) {
    if (plain) return;
    constexpr int kGzip = 15 + 16;
    ready_ = deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, 8,
                          Z_DEFAULT_STRATEGY) == Z_OK;
  }
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;
  ~Compressor() {
    if (ready_) deflateEnd(&stream_);
  }

  absl::Status Add(std::string_view text) { return Run(text, Z_NO_FLUSH); }
  absl::Status Finish() { return Run("", Z_FINISH); }

 private:
  absl::Status Run(std::string_view text, int flush) {
    if (plain_) return Collect(text, flush == Z_FINISH);
    if (!ready_) return absl::ResourceExhaustedError("memory: too little to compress the trace");
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream_.avail_in = static_cast<uInt>(text.size());
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(out_.data());
      stream_.avail_out = static_cast<uInt>(out_.size());
      deflate(&stream_, flush);
      const size_t made = out_.size() - stream_.avail_out;
      if (made > 0) NSA_RETURN_IF_ERROR(write_({out_.data(), made}));
    } while (stream_.avail_out == 0);
    return absl::OkStatus();
  }

  absl::Status Collect(std::string_view text, bool last) {
    collected_ += text;
    if (!last && collected_.size() < out_.size()) return absl::OkStatus();
    const std::string piece = std::exchange(collected_, "");
    return write_(piece);
  }

  const std::function<absl::Status(std::string_view)>& write_;
  const bool plain_;
  std::string collected_;  // plain text that is not passed on yet
  z_stream stream_ = {};
  bool ready_ = false;  // deflateInit2 has set up stream_
  std::vector<char> out_ = std::vector<char>(64 << 10);
};

// What is nested deeper than any event is left out: to write it would take a stack as deep.
Json Parsed(const std::string& line) {
  constexpr int kDeepest = 8;
  const auto shallow = [](int depth, Json::parse_event_t, Json&) { return depth <= kDeepest; };
  return Json::parse(line, shallow, /*allow_exceptions=*/false);
}

absl::Status Damaged(int32_t rank) {
  return absl::DataLossError(
      absl::StrCat("profile: rank ", rank, ": what came is no whole trace; try again"));
}

int64_t NumberIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string TextIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

double MicrosecondsIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

// otherData of the first line.
absl::StatusOr<Json> HeadOf(GzipLines* lines, int32_t rank) {
  std::string line;
  if (!lines->Next(&line)) return Damaged(rank);
  const Json head = Parsed(line + std::string(kLastLine));
  if (!head.is_object() || !head.contains("otherData") || !head["otherData"].is_object()) {
    return Damaged(rank);
  }
  return head["otherData"];
}

void Count(const Json& event, TraceTotals* totals) {
  if (TextIn(event, "ph") != "X") return;
  const std::string kind = TextIn(event, "cat");
  const double microseconds = MicrosecondsIn(event, "dur");
  if (kind == "step") {
    ++totals->steps;
    totals->step_microseconds += microseconds;
    return;
  }
  // Of a job's own process, whose names may be any.
  constexpr size_t kMostNames = 10'000, kLongestName = 1'000;
  std::pair<std::string, std::string> key(CutText(kind, kLongestName),
                                          CutText(TextIn(event, "name"), kLongestName));
  if (totals->times.size() >= kMostNames && !totals->times.contains(key)) key = {"", "others"};
  TraceTotals::Time& time = totals->times[std::move(key)];
  ++time.calls;
  time.microseconds += microseconds;
}

// The event as one of this rank, at the common time.
void Adopt(Json* event, int32_t rank, const std::string& node, double later) {
  (*event)["pid"] = rank;
  if (TextIn(*event, "ph") == "M") {
    if (TextIn(*event, "name") == "process_name") {
      (*event)["args"] = {{"name", absl::StrCat("rank ", rank, " (", node, ")")}};
    }
    return;
  }
  (*event)["ts"] = std::round((MicrosecondsIn(*event, "ts") + later) * 1000) / 1000;
}

}  // namespace

absl::StatusOr<TraceHeads> ReadHeads(const RankTraces& traces) {
  TraceHeads heads;
  TraceTotals& totals = heads.totals;
  for (const auto& [rank, trace] : traces.ranks()) {
    if (!trace.complete()) continue;
    GzipLines lines(trace.file);
    NSA_ASSIGN_OR_RETURN(const Json head, HeadOf(&lines, rank));
    int64_t base = 0;
    const int64_t first = NumberIn(head, "first_step");
    if (!absl::SimpleAtoi(TextIn(head, "base_unix_nanos"), &base) || first < 1) {
      return Damaged(rank);
    }
    heads.base_unix_nanos[rank] = base;
    totals.first_step = totals.first_step == 0 ? first : std::min(totals.first_step, first);
    totals.last_step = std::max(totals.last_step, NumberIn(head, "last_step"));
    totals.dropped_events += NumberIn(head, "dropped_events");
    const auto notes = head.find("notes");
    if (notes == head.end() || !notes->is_array()) continue;
    for (const Json& note : *notes) {
      if (note.is_string()) totals.notes.insert(CleanText(note.get<std::string>()));
    }
  }
  return heads;
}

std::string TraceFileName(const std::string& job, const TraceTotals& totals) {
  std::string name = job;
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') {
      c = '_';
    }
  }
  if (!name.empty() && (name[0] == '.' || name[0] == '-')) name[0] = '_';
  return absl::StrFormat("%s-steps-%d-%d.json.gz", name, totals.first_step, totals.last_step);
}

absl::StatusOr<TraceTotals> MergeTraces(const RankTraces& traces, const TraceHeads& heads,
                                        const std::string& job,
                                        const std::function<absl::Status(std::string_view)>& write,
                                        bool plain) {
  TraceTotals totals = heads.totals;
  int64_t base = std::numeric_limits<int64_t>::max();
  for (const auto& [rank, nanos] : heads.base_unix_nanos) base = std::min(base, nanos);
  const Json other = {{"job", job},
                      {"first_step", totals.first_step},
                      {"last_step", totals.last_step},
                      {"ranks", heads.base_unix_nanos.size()},
                      {"base_unix_nanos", absl::StrCat(base)},
                      {"dropped_events", totals.dropped_events},
                      {"notes", totals.notes}};
  Compressor out(write, plain);
  NSA_RETURN_IF_ERROR(out.Add(absl::StrCat(
      "{\"displayTimeUnit\":\"ms\",\"otherData\":",
      other.dump(-1, ' ', false, Json::error_handler_t::replace), ",\"traceEvents\":[\n")));
  bool first = true;
  for (const auto& [rank, nanos] : heads.base_unix_nanos) {
    const RankTrace& trace = traces.ranks().at(rank);
    GzipLines lines(trace.file);
    NSA_RETURN_IF_ERROR(HeadOf(&lines, rank).status());
    const double later = static_cast<double>(nanos - base) * 1e-3;
    std::string line;
    bool whole = false;
    while (lines.Next(&line)) {
      whole = line == kLastLine;
      if (whole) break;
      if (!line.empty() && line.back() == ',') line.pop_back();
      Json event = Parsed(line);
      if (!event.is_object()) return Damaged(rank);
      Count(event, &totals);
      Adopt(&event, rank, trace.node, later);
      NSA_RETURN_IF_ERROR(out.Add(absl::StrCat(
          first ? "" : ",\n", event.dump(-1, ' ', false, Json::error_handler_t::replace))));
      first = false;
    }
    if (!whole) return Damaged(rank);
  }
  NSA_RETURN_IF_ERROR(out.Add("\n]}\n"));
  NSA_RETURN_IF_ERROR(out.Finish());
  return totals;
}

}  // namespace nsa

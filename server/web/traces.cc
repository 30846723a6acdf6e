#include "server/web/traces.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/trace/merge_traces.h"
#include "common/trace/rank_traces.h"
#include "server/act/profile/profile_job.h"
#include "server/web/change_bell.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kLineEvery = absl::Milliseconds(500);
constexpr absl::Duration kTracePause = absl::Milliseconds(5);
constexpr size_t kPieceBytes = 256 << 10;

Json TraceJson(const TraceShelf::Trace& trace) {
  return {{"id", trace.id}, {"name", trace.name}, {"bytes", trace.bytes}, {"time", trace.id}};
}

// One recording, used by the thread of its request.
class Recording {
 public:
  Recording(const Web::Parts& parts, TraceShelf* shelf, JobPtr job, std::string profile_id,
            std::string who)
      : parts_(parts),
        shelf_(shelf),
        job_(std::move(job)),
        profile_id_(std::move(profile_id)),
        who_(std::move(who)),
        traces_(parts.trace_folder, TraceShelf::kMostBytes),
        bell_(&parts.hub, job_->job().id(), parts.clock, parts.draining) {}
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() { parts_.profiles.End(profile_id_); }

  // The next line; nothing after the last one.
  std::optional<std::string> Next() {
    if (over_ || parts_.draining) return std::nullopt;
    const absl::Duration until = parts_.clock.Monotonic() + kLineEvery;
    Json line;
    while (true) {
      const absl::StatusOr<bool> whole = TakeAll();
      if (!whole.ok() || *whole) {
        over_ = true;
        line = whole.ok() ? Last() : ErrorLine(whole.status());
        break;
      }
      const absl::Duration left = until - parts_.clock.Monotonic();
      if (left <= absl::ZeroDuration()) {
        line = Progress();
        break;
      }
      bell_.Wait(kTracePause, left);
      if (parts_.draining) return std::nullopt;
    }
    return Text(line) + "\n";
  }

 private:
  static Json ErrorLine(const absl::Status& status) {
    return {{"error", std::string(status.message())}};
  }

  // Takes what the broker has. True when all ranks have been passed on.
  absl::StatusOr<bool> TakeAll() {
    while (true) {
      const auto part = parts_.profiles.Next(profile_id_);
      if (absl::IsOutOfRange(part.status())) return true;
      if (!part.ok()) return part.status();
      if (!part->has_value()) return false;
      NSA_RETURN_IF_ERROR(traces_.Take(**part));
    }
  }

  Json Progress() const {
    Json ranks = Json::array();
    for (const v1::RankPlacement& place : job_->placements()) {
      Json one = {{"rank", place.rank()},
                  {"node", place.node()},
                  {"received", 0},
                  {"size", 0},
                  {"error", ""}};
      if (const auto found = traces_.ranks().find(place.rank()); found != traces_.ranks().end()) {
        one["received"] = found->second.received;
        one["size"] = found->second.size;
        one["error"] = found->second.error;
      }
      ranks.push_back(std::move(one));
    }
    return {{"ranks", std::move(ranks)}};
  }

  // All ranks have answered: what they sent becomes one file.
  Json Last() {
    NoteProfiled(&parts_.store, job_->job().id(), parts_.profiles.SummaryOf(profile_id_), who_);
    // Other callers may profile the job meanwhile.
    parts_.profiles.End(profile_id_);
    const std::vector<std::string> problems = traces_.Problems();
    if (problems.size() == traces_.ranks().size()) {
      return ErrorLine(absl::InternalError(
          absl::StrCat("profile: no rank gave a trace: ", absl::StrJoin(problems, "; "))));
    }
    const auto trace = Merge();
    if (!trace.ok()) return ErrorLine(trace.status());
    return {{"trace", TraceJson(*trace)}, {"problems", problems}};
  }

  absl::StatusOr<TraceShelf::Trace> Merge() {
    NSA_ASSIGN_OR_RETURN(const TraceHeads heads, ReadHeads(traces_));
    NSA_ASSIGN_OR_RETURN(Fd file, NamelessFile(parts_.trace_folder));
    int64_t bytes = 0;
    const auto write = [&](std::string_view data) -> absl::Status {
      if (parts_.draining) return absl::CancelledError("profile: the coordinator ends");
      bytes += static_cast<int64_t>(data.size());
      if (bytes <= TraceShelf::kMostBytes) return AppendTo(file, data);
      return absl::ResourceExhaustedError(
          absl::StrCat("profile: the trace of all ranks has more than ", TraceShelf::kMostBytes,
                       " bytes; record fewer steps"));
    };
    const v1::Job& job = job_->job();
    const std::string& name = job.name().empty() ? job.id() : job.name();
    NSA_ASSIGN_OR_RETURN(const TraceTotals totals, MergeTraces(traces_, heads, name, write));
    return shelf_->Add({.id = absl::ToUnixMillis(parts_.clock.Wall()),
                        .job_id = job.id(),
                        .name = TraceFileName(name, totals),
                        .bytes = bytes,
                        .file = std::make_shared<const Fd>(std::move(file))});
  }

  const Web::Parts& parts_;
  TraceShelf* const shelf_;
  const JobPtr job_;  // as it was when the recording began
  const std::string profile_id_;
  const std::string who_;
  RankTraces traces_;
  ChangeBell bell_;
  bool over_ = false;
};

}  // namespace

absl::StatusOr<HttpReply> RecordTrace(const Web::Parts& parts, TraceShelf* shelf,
                                      const std::string& job, const std::string& body,
                                      const std::string& who) {
  NSA_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  const auto steps = json.find("steps");
  if (steps == json.end() || !steps->is_number_integer()) {
    return absl::InvalidArgumentError(absl::StrCat("steps: not a number of steps (from 1 to ",
                                                   ProfileBroker::kMostSteps, "); give one"));
  }
  NSA_ASSIGN_OR_RETURN(const JobPtr stored, FindJobToProfile(parts.store, job, ""));
  NSA_ASSIGN_OR_RETURN(
      std::string id, parts.profiles.Begin(
                          stored->job(), {stored->placements().begin(), stored->placements().end()},
                          steps->get<int64_t>()));
  const auto recording = std::make_shared<Recording>(parts, shelf, stored, std::move(id), who);
  return HttpReply{.type = "application/x-ndjson; charset=utf-8",
                   .body = {},
                   .headers = {{"Cache-Control", "no-store"}},
                   .more = [recording] { return recording->Next(); }};
}

absl::StatusOr<Json> TracesView(const Web::Parts& parts, const TraceShelf& shelf,
                                const std::string& job) {
  NSA_ASSIGN_OR_RETURN(const JobPtr stored, parts.store.Find(job));
  Json list = Json::array();
  for (const TraceShelf::Trace& trace : shelf.Of(stored->job().id())) {
    list.push_back(TraceJson(trace));
  }
  return Json{{"traces", std::move(list)}};
}

absl::StatusOr<HttpReply> TraceFile(const Web::Parts& parts, const TraceShelf& shelf,
                                    const std::string& job, const std::string& id) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(id, &number)) {
    return absl::NotFoundError("trace: not the id of one; see the list");
  }
  NSA_ASSIGN_OR_RETURN(const JobPtr stored, parts.store.Find(job));
  NSA_ASSIGN_OR_RETURN(const TraceShelf::Trace trace, shelf.Find(stored->job().id(), number));
  HttpReply reply{.type = "application/gzip", .body = {}};
  reply.headers = {
      {"Cache-Control", "no-store"},
      {"Content-Length", absl::StrCat(trace.bytes)},
      // The name has letters, digits and "-_." only.
      {"Content-Disposition", absl::StrCat("attachment; filename=\"", trace.name, "\"")}};
  reply.more = [trace, at = int64_t{0}]() mutable -> std::optional<std::string> {
    std::string piece(std::min(kPieceBytes, static_cast<size_t>(trace.bytes - at)), '\0');
    const ssize_t got = pread(trace.file->get(), piece.data(), piece.size(), at);
    if (got <= 0) return std::nullopt;
    piece.resize(static_cast<size_t>(got));
    at += got;
    return piece;
  };
  return reply;
}

}  // namespace nsa::server

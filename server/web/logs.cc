#include "server/web/logs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "server/decide/lifecycle.h"
#include "server/web/selection.h"
#include "server/web/stream.h"

namespace nsa::server {
namespace {

constexpr int kLines = 300;
constexpr int kMostLines = 1'000;
constexpr size_t kMostLogBytes = 256 << 10;

// The job, and which rank of it is asked for.
struct RankOfJob {
  JobPtr job;
  int32_t rank = 0;
};

absl::StatusOr<RankOfJob> WantedRank(const Web::Parts& parts, const std::string& job,
                                     const HttpRequest& request) {
  NSA_ASSIGN_OR_RETURN(JobPtr stored, parts.store.Find(job));
  // A rank that the job never has would be remembered by the store of logs.
  const int last = std::max(stored->job().spec().resources().gpus(), 1) - 1;
  NSA_ASSIGN_OR_RETURN(const int64_t rank, NumberIn(request, "rank", 0, last));
  return RankOfJob{.job = std::move(stored), .rank = static_cast<int32_t>(rank)};
}

// One of the places of streams.
class StreamPlace {
 public:
  explicit StreamPlace(std::shared_ptr<std::atomic<int>> streams)
      : streams_(std::move(streams)), granted_(streams_->fetch_add(1) < kMostStreams) {}
  StreamPlace(const StreamPlace&) = delete;
  StreamPlace& operator=(const StreamPlace&) = delete;
  ~StreamPlace() { streams_->fetch_sub(1); }
  bool granted() const { return granted_; }

 private:
  const std::shared_ptr<std::atomic<int>> streams_;
  const bool granted_;
};

}  // namespace

absl::StatusOr<Json> LogView(const Web::Parts& parts, const std::string& job,
                             const HttpRequest& request) {
  NSA_ASSIGN_OR_RETURN(const int64_t lines, NumberIn(request, "lines", kLines, kMostLines));
  NSA_ASSIGN_OR_RETURN(const RankOfJob wanted, WantedRank(parts, job, request));
  const v1::Job& found = wanted.job->job();
  NSA_ASSIGN_OR_RETURN(LogStore::Position at,
                       parts.logs.Tail(found.id(), wanted.rank, static_cast<int>(lines)));
  std::string text;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const LogStore::Chunk chunk,
                         parts.logs.Read(found.id(), wanted.rank, at, IsTerminal(found.state())));
    if (chunk.data.empty()) break;
    text += chunk.data;
    at = chunk.next;
    if (text.size() <= kMostLogBytes) continue;
    // The end is what is wanted: the first lines go.
    const size_t begin = text.size() - kMostLogBytes;
    const size_t line = text.find('\n', begin);
    text.erase(0, line == std::string::npos ? begin : line + 1);
  }
  return Json{{"rank", wanted.rank}, {"text", std::move(text)}};
}

absl::StatusOr<HttpReply> LogFile(const Web::Parts& parts, const std::string& job,
                                  const HttpRequest& request,
                                  const std::shared_ptr<std::atomic<int>>& streams) {
  NSA_ASSIGN_OR_RETURN(const RankOfJob wanted, WantedRank(parts, job, request));
  const auto place = std::make_shared<const StreamPlace>(streams);
  if (!place->granted()) {
    return absl::UnavailableError("log: too many streams are open; try again later");
  }
  HttpReply reply{.type = "text/plain; charset=utf-8", .body = {}};
  reply.headers = {{"Cache-Control", "no-store"}, {"Content-Disposition", "attachment"}};
  reply.more = [&parts, wanted, place, at = LogStore::Position{},
                sent = size_t{0}]() mutable -> std::optional<std::string> {
    if (parts.draining || sent >= kMostFileBytes) return std::nullopt;
    const v1::Job& found = wanted.job->job();
    auto chunk = parts.logs.Read(found.id(), wanted.rank, at, IsTerminal(found.state()));
    if (!chunk.ok() || chunk->data.empty()) return std::nullopt;
    at = chunk->next;
    sent += chunk->data.size();
    return std::move(chunk->data);
  };
  return reply;
}

}  // namespace nsa::server

#include "server/rpc/watch.h"

#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/rpc/secret.h"
#include "server/decide/lifecycle.h"

namespace nsa::server {
namespace {

// What a stream reads ahead; each reader has some.
constexpr int kBatch = 64;
constexpr size_t kBatchBytes = 128 << 10;
// Of events that are not the reader's, until other streams have their turn.
constexpr int kBatchesAtOnce = 16;
// The log store is locked while the last lines are searched.
constexpr int32_t kMostTailLines = 100'000;

absl::StatusOr<bool> HasEnded(const JobStore& store, const std::string& job_id) {
  if (job_id.empty()) return false;
  NSA_ASSIGN_OR_RETURN(const JobPtr job, store.Find(job_id));
  return IsTerminal(job->job().state());
}

// Sends what `fetch` returns, one batch after another. Whether the job has ended is checked before
// each fetch, so that nothing stored between the two is missed.
template <typename Response, typename Fetch>
Source<Response> Batched(const JobStore& store, std::string job_id, bool follow, Fetch fetch) {
  return [&store, job_id = std::move(job_id), follow, fetch = std::move(fetch),
          ready = std::make_shared<std::deque<Response>>()]()
             -> absl::StatusOr<std::optional<Response>> {
    if (ready->empty()) {
      NSA_ASSIGN_OR_RETURN(const bool ended, HasEnded(store, job_id));
      NSA_ASSIGN_OR_RETURN(std::vector<Response> batch, fetch());
      ready->assign(std::make_move_iterator(batch.begin()), std::make_move_iterator(batch.end()));
      if (ready->empty() && (ended || !follow)) return EndOfStream();
    }
    if (ready->empty()) return std::nullopt;
    Response next = std::move(ready->front());
    ready->pop_front();
    return next;
  };
}

// The reader's position in each rank's log.
using LogPlaces = std::vector<std::pair<int32_t, LogStore::Position>>;

std::string EncodePlaces(const LogPlaces& places) {
  std::string token;
  for (const auto& [rank, at] : places) {
    absl::StrAppendFormat(&token, "%s%d.%d.%d", token.empty() ? "" : "_", rank, at.generation,
                          at.offset);
  }
  return token;
}

absl::Status DecodePlaces(const std::string& token, LogPlaces* places) {
  const absl::Status bad = absl::InvalidArgumentError(
      "resume_token: does not come from a reply for this job and rank; leave it empty");
  const std::vector<std::string> parts = absl::StrSplit(token, '_');
  if (parts.size() != places->size()) return bad;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::vector<std::string> numbers = absl::StrSplit(parts[i], '.');
    int32_t rank = 0;
    auto& [wanted, at] = (*places)[i];
    if (numbers.size() != 3 || !absl::SimpleAtoi(numbers[0], &rank) || rank != wanted ||
        !absl::SimpleAtoi(numbers[1], &at.generation) ||
        !absl::SimpleAtoi(numbers[2], &at.offset)) {
      return bad;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTailLines(int32_t lines) {
  if (lines >= 0 && lines <= kMostTailLines) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("tail_lines: %d (from 0 to %d); ask for fewer, or for the whole log with 0",
                      lines, kMostTailLines));
}

}  // namespace

Source<v1::WatchJobResponse> WatchJobSource(const JobStore& store, const JobControl& control,
                                            std::string job_id) {
  struct Sent {
    std::string hash;  // of a job, which may be large
    bool ended = false;
  };
  return
      [&store, &control, job_id = std::move(job_id),
       sent = std::make_shared<Sent>()]() -> absl::StatusOr<std::optional<v1::WatchJobResponse>> {
        if (sent->ended) return EndOfStream();
        NSA_ASSIGN_OR_RETURN(const JobPtr job, store.Find(job_id));
        v1::WatchJobResponse response;
        *response.mutable_job() = control.View(*job);
        std::string hash = Sha256(response.SerializeAsString());
        sent->ended = IsTerminal(job->job().state());
        if (hash == sent->hash) {
          if (sent->ended) return EndOfStream();
          return std::nullopt;
        }
        sent->hash = std::move(hash);
        return response;
      };
}

Source<v1::WatchEventsResponse> EventSource(const JobStore& store,
                                            const v1::WatchEventsRequest& request,
                                            std::string job_id, const std::string& only) {
  auto after = std::make_shared<int64_t>(request.after_sequence());
  auto fetch = [&store, job_id, only,
                after]() -> absl::StatusOr<std::vector<v1::WatchEventsResponse>> {
    std::vector<v1::WatchEventsResponse> batch;
    // An empty batch means that there are no more, so events of others are read past.
    for (int i = 0; batch.empty(); ++i) {
      if (i == kBatchesAtOnce) return NotYet();
      NSA_ASSIGN_OR_RETURN(const auto events, store.Events(job_id, *after, kBatch, kBatchBytes));
      if (events.empty()) break;
      for (const v1::JobEvent& event : events) {
        *after = event.sequence();
        if (!only.empty()) {
          const absl::StatusOr<JobPtr> job = store.Find(event.job_id());
          if (!job.ok() || (*job)->job().owner() != only) continue;
        }
        *batch.emplace_back().mutable_event() = event;
      }
    }
    return batch;
  };
  return Batched<v1::WatchEventsResponse>(store, std::move(job_id), request.follow(),
                                          std::move(fetch));
}

absl::Status CheckRank(int32_t rank, const v1::Job& job) {
  const int32_t ranks = job.spec().resources().gpus();
  if (rank < ranks) return absl::OkStatus();
  return absl::NotFoundError(
      ranks == 1
          ? absl::StrFormat("rank: %d (job %s has rank 0 only); leave --rank out", rank, job.id())
          : absl::StrFormat("rank: %d (job %s has 0 to %d); leave --rank out, or choose one", rank,
                            job.id(), ranks - 1));
}

absl::StatusOr<Source<v1::WatchRecordsResponse>> RecordSource(
    const JobStore& store, const v1::WatchRecordsRequest& request, std::string job_id) {
  NSA_ASSIGN_OR_RETURN(const JobPtr job, store.Find(job_id));
  NSA_RETURN_IF_ERROR(CheckRank(request.rank(), job->job()));
  auto after = std::make_shared<int64_t>(request.after_position());
  if (request.tail() > 0 && request.after_position() == 0) {
    NSA_ASSIGN_OR_RETURN(*after, store.TailPosition(job_id, request.rank(), request.tail()));
  }
  auto fetch = [&store, job_id, after,
                rank = request.rank()]() -> absl::StatusOr<std::vector<v1::WatchRecordsResponse>> {
    NSA_ASSIGN_OR_RETURN(auto batch, store.Records(job_id, rank, *after, kBatch, kBatchBytes));
    if (!batch.empty()) *after = batch.back().position();
    return batch;
  };
  return Batched<v1::WatchRecordsResponse>(store, std::move(job_id), request.follow(),
                                           std::move(fetch));
}

absl::StatusOr<Source<v1::StreamLogsResponse>> LogSource(const JobStore& store, LogStore* logs,
                                                         const v1::StreamLogsRequest& request,
                                                         std::string job_id) {
  NSA_ASSIGN_OR_RETURN(const JobPtr job, store.Find(job_id));
  const int32_t ranks = job->job().spec().resources().gpus();
  NSA_RETURN_IF_ERROR(CheckRank(request.rank(), job->job()));
  NSA_RETURN_IF_ERROR(CheckTailLines(request.tail_lines()));
  auto places = std::make_shared<LogPlaces>();
  for (int32_t rank = 0; rank < ranks; ++rank) {
    if (request.rank() < 0 || request.rank() == rank) places->push_back({rank, {}});
  }
  if (!request.resume_token().empty()) {
    NSA_RETURN_IF_ERROR(DecodePlaces(request.resume_token(), places.get()));
  } else if (request.tail_lines() > 0) {
    for (auto& [rank, at] : *places) {
      NSA_ASSIGN_OR_RETURN(at, logs->Tail(job_id, rank, request.tail_lines()));
    }
  }
  return Source<v1::StreamLogsResponse>(
      [&store, logs, job_id = std::move(job_id), follow = request.follow(), places,
       turn =
           std::make_shared<size_t>(0)]() -> absl::StatusOr<std::optional<v1::StreamLogsResponse>> {
        NSA_ASSIGN_OR_RETURN(const bool ended, HasEnded(store, job_id));
        for (size_t tried = 0; tried < places->size(); ++tried) {
          auto& [rank, at] = (*places)[(*turn)++ % places->size()];
          NSA_ASSIGN_OR_RETURN(LogStore::Chunk chunk,
                               logs->Read(job_id, rank, at, ended || !follow));
          if (chunk.data.empty()) continue;
          at = chunk.next;
          v1::StreamLogsResponse response;
          response.set_rank(rank);
          response.set_data(std::move(chunk.data));
          response.set_resume_token(EncodePlaces(*places));
          return response;
        }
        if (ended || !follow) return EndOfStream();
        return std::nullopt;
      });
}

}  // namespace nsa::server

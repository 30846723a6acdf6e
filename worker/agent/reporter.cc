#include "worker/agent/reporter.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/run_file.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

namespace nsa::agent {
namespace {

constexpr int kMaxBatchRecords = 256;
constexpr size_t kMaxBatchBytes = 1 << 20;
constexpr int64_t kMaxLogChunk = 256 << 10;
constexpr int kMaxLogChunksAtOnce = 64;                        // then records are sent again
constexpr absl::Duration kLogEvery = absl::Milliseconds(900);  // with every other report
constexpr absl::Duration kSaveEvery = absl::Seconds(5);
constexpr absl::Duration kSayEvery = absl::Minutes(5);  // that the same reports are refused

template <typename Request>
void SetKey(const RankKey& key, Request* request) {
  request->set_job_id(key.job_id);
  request->set_generation(key.generation);
  request->set_rank(key.rank);
}

// Up to kMaxLogChunk bytes at an offset; empty at the end of the file. A worker may have replaced
// the log with a link or a pipe: no other file is sent.
absl::StatusOr<std::string> ReadChunk(const RunDir& dir, int64_t offset) {
  NSA_ASSIGN_OR_RETURN(const Fd fd, OpenRunFile(dir.log()));
  std::string chunk(kMaxLogChunk, '\0');
  const ssize_t n = pread(fd.get(), chunk.data(), chunk.size(), offset);
  if (n < 0) return absl::ErrnoToStatus(errno, dir.log().string());
  chunk.resize(static_cast<size_t>(n));
  return chunk;
}

}  // namespace

Reporter::Reporter(RankKey key, RunDir dir, Link* link)
    : key_(std::move(key)), dir_(std::move(dir)), caller_(link) {
  SetKey(key_, &batch_);
  LoadProgress();
}

bool Reporter::Look() {
  if (!saw_started_) LookForStart();
  // Until the coordinator has said where to begin, it is not known which records it wants.
  if (!begun_ || records_over_) return false;
  FillBatch();
  return urgent_ || batch_.records_size() >= kMaxBatchRecords;
}

Reporter::Result Reporter::Pump(std::optional<absl::Duration> log_patience) {
  // Records first: they are few and people wait for them. Then the log, even if the records failed.
  const bool records = PumpRecords();
  Result log = Result::kComplete;
  if (log_patience.has_value() || RealClock().Monotonic() >= next_log_) {
    log = PumpLog(log_patience);
    next_log_ = RealClock().Monotonic();
    if (log == Result::kComplete) next_log_ += kLogEvery;
  }
  SaveProgress();
  return records ? log : Result::kFailed;
}

void Reporter::Cancel() { caller_.Cancel(); }

bool Reporter::PumpRecords() {
  if (!Begin()) return records_over_;
  int64_t sought = 0;
  while (!records_over_ && FillBatch()) {
    batch_.set_store_id(caller_.store_id());
    v1::ReportRecordsResponse response;
    const absl::Status status = caller_.Call(&v1::FleetService::StubInterface::ReportRecords,
                                             batch_, &response, &records_refusal_.answered);
    if (!status.ok()) {
      records_over_ = IsFinal(status, &records_refusal_);
      return records_over_;
    }
    Accepted(&records_refusal_);
    const int64_t after = batch_.records(batch_.records_size() - 1).sequence() + 1;
    if (response.next_sequence() == after) {
      next_sequence_ = after;
      ClearBatch();
      continue;
    }
    // The coordinator has more or fewer records than expected, e.g. after its store was restored
    // from a backup.
    if (response.next_sequence() <= sought) return false;  // No progress; try again later.
    sought = response.next_sequence();
    Seek(sought);
  }
  return true;
}

bool Reporter::Begin() {
  if (begun_ || records_over_) return true;
  v1::ReportRecordsRequest question;
  SetKey(key_, &question);
  question.set_store_id(caller_.store_id());
  v1::ReportRecordsResponse response;
  const absl::Status status = caller_.Call(&v1::FleetService::StubInterface::ReportRecords,
                                           question, &response, &records_refusal_.answered);
  if (!status.ok()) {
    records_over_ = IsFinal(status, &records_refusal_);
    return false;
  }
  begun_ = true;
  if (response.next_sequence() != next_sequence_) Seek(response.next_sequence());
  return true;
}

void Reporter::LookForStart() {
  JournalReader reader(dir_.journal());
  for (int i = 0; i < kMaxBatchRecords && !saw_started_; ++i) {
    const absl::StatusOr<std::optional<v1::WorkerRecord>> record = reader.Next();
    if (!record.ok() || !record->has_value()) return;
    saw_started_ = (*record)->has_started();
  }
}

bool Reporter::FillBatch() {
  size_t bytes = batch_.ByteSizeLong();
  while (batch_.records_size() < kMaxBatchRecords && bytes < kMaxBatchBytes) {
    absl::StatusOr<std::optional<v1::WorkerRecord>> record = journal_->Next();
    if (!record.ok()) {
      if (batch_.records_size() > 0) break;  // Send what was read before the damage first.
      if (std::exchange(from_note_, false)) {
        // The offset in reported.json may be wrong: start over from the beginning.
        journal_ = std::make_unique<JournalReader>(dir_.journal());
        unread_ = 1;
        continue;
      }
      spdlog::error("{}: {}; its later records are lost", key_.ToString(),
                    record.status().ToString());
      records_over_ = true;
      break;
    }
    if (!record->has_value()) break;
    Notice(**record);
    unread_ = (*record)->sequence() + 1;
    if ((*record)->sequence() < next_sequence_) continue;
    bytes += (*record)->ByteSizeLong();
    urgent_ = urgent_ || !(*record)->has_step();
    *batch_.add_records() = *std::move(*record);
  }
  return batch_.records_size() > 0;
}

void Reporter::ClearBatch() {
  batch_.clear_records();
  urgent_ = false;
}

void Reporter::Notice(const v1::WorkerRecord& record) {
  if (record.has_finished()) outcome_ = record.finished().outcome();
}

void Reporter::Seek(int64_t sequence) {
  ClearBatch();
  next_sequence_ = std::max<int64_t>(1, sequence);
  if (next_sequence_ >= unread_) return;  // FillBatch() skips the records in between.
  spdlog::info("{}: the coordinator wants record {} again", key_.ToString(), next_sequence_);
  journal_ = std::make_unique<JournalReader>(dir_.journal());
  unread_ = 1;
  from_note_ = false;
}

Reporter::Result Reporter::PumpLog(std::optional<absl::Duration> patience) {
  for (int chunks = 0; !log_over_; ++chunks) {
    v1::ReportLogRequest request;
    SetKey(key_, &request);
    request.set_store_id(caller_.store_id());
    request.set_offset(log_offset_);
    absl::StatusOr<std::string> chunk = ReadChunk(dir_, log_offset_);
    NoticeLog(chunk.status());
    if (!chunk.ok() || chunk->empty()) break;
    request.set_data(*std::move(chunk));
    if (chunks == kMaxLogChunksAtOnce) return Result::kMore;
    v1::ReportLogResponse response;
    const absl::Status status = caller_.Call(&v1::FleetService::StubInterface::ReportLog, request,
                                             &response, &log_refusal_.answered);
    if (absl::IsOutOfRange(status) && log_offset_ > 0) {
      log_offset_ = 0;  // The coordinator reports a gap: send the log again from its beginning.
    } else if (!status.ok()) {
      log_over_ = GivesUpLog(status, patience);
      if (!log_over_) return Result::kFailed;
    } else {
      Accepted(&log_refusal_);
      log_refused_since_.reset();
      log_offset_ = std::max<int64_t>(0, response.next_offset());
    }
  }
  return Result::kComplete;
}

void Reporter::NoticeLog(const absl::Status& read) {
  // Before the worker has started there is no log.
  const bool missed = !read.ok() && (!absl::IsNotFound(read) || log_offset_ > 0);
  if (missed && !missed_log_) {
    spdlog::warn("{}: its log cannot be read: {}; until it can, `nsactl logs` shows no more of it",
                 key_.ToString(), std::string(read.message()));
  }
  missed_log_ = missed;
}

bool Reporter::GivesUpLog(const absl::Status& status, std::optional<absl::Duration> patience) {
  if (IsFinal(status, &log_refusal_)) return true;
  // Another store answers: the log waits for its own.
  if (!patience.has_value() || !log_refusal_.answered || absl::IsAborted(status)) {
    log_refused_since_.reset();
    return false;
  }
  const absl::Duration now = RealClock().Monotonic();
  if (!log_refused_since_.has_value()) log_refused_since_ = now;
  if (now - *log_refused_since_ < *patience) return false;
  std::error_code error;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(dir_.log(), error));
  spdlog::error("{}: {} bytes of its log, from byte {}, are lost: {}", key_.ToString(),
                error ? 0 : size - log_offset_, log_offset_, status.ToString());
  return true;
}

bool Reporter::IsFinal(const absl::Status& status, Refusal* refusal) {
  if (absl::IsNotFound(status) || absl::IsInvalidArgument(status) ||
      absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status)) {
    spdlog::warn("{}: the coordinator refuses its {} for good: {}", key_.ToString(), refusal->what,
                 status.ToString());
    return true;
  }
  // The heartbeats report once, for all ranks, that nobody answers.
  const bool nobody = absl::IsUnavailable(status) && !refusal->answered;
  const absl::Duration now = RealClock().Monotonic();
  if (nobody || absl::IsCancelled(status) || now - refusal->said_at < kSayEvery) return false;
  refusal->said_at = now;
  refusal->standing = true;
  spdlog::warn("{}: the coordinator does not take its {}: {}; trying again", key_.ToString(),
               refusal->what, status.ToString());
  return false;
}

void Reporter::Accepted(Refusal* refusal) {
  if (!std::exchange(refusal->standing, false)) return;
  spdlog::info("{}: the coordinator takes its {} again", key_.ToString(), refusal->what);
}

void Reporter::LoadProgress() {
  int64_t offset = 0;
  const absl::StatusOr<std::string> text = ReadWholeFile(dir_.reported());
  const nlohmann::json json =
      nlohmann::json::parse(text.ok() ? *text : "", nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) {
    const auto number = [&json](const char* key) -> int64_t {
      const auto it = json.find(key);
      return it != json.end() && it->is_number_integer() ? std::max<int64_t>(0, *it) : 0;
    };
    offset = number("journal_offset");
    next_sequence_ = std::max<int64_t>(1, number("next_sequence"));
    unread_ = next_sequence_;
    log_offset_ = number("log_offset");
    saw_started_ = number("started") != 0;
    if (v1::Outcome_IsValid(static_cast<int>(number("outcome"))) && number("outcome") != 0) {
      outcome_ = static_cast<v1::Outcome>(number("outcome"));
    }
  }
  journal_ = std::make_unique<JournalReader>(dir_.journal(), offset);
  from_note_ = offset > 0;
}

void Reporter::SaveProgress() {
  // Only when every record read so far has been accepted.
  if (batch_.records_size() > 0 || RealClock().Monotonic() - saved_at_ < kSaveEvery) return;
  const nlohmann::json json = {{"journal_offset", journal_->offset()},
                               {"next_sequence", next_sequence_},
                               {"log_offset", log_offset_},
                               {"started", saw_started() ? 1 : 0},
                               {"outcome", outcome_.has_value() ? static_cast<int>(*outcome_) : 0}};
  std::string text = json.dump();
  if (text == saved_progress_) return;
  if (WriteFileAtomically(dir_.reported(), text).ok()) saved_progress_ = std::move(text);
  saved_at_ = RealClock().Monotonic();
}

}  // namespace nsa::agent

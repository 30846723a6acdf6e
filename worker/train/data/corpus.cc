#include "worker/train/data/corpus.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "worker/train/data/build_corpus.h"

namespace nsa::train {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);  // between looks at a loading thread

// Owned by both the reading thread and the waiting thread, because the latter may give up first.
struct Loading {
  ReadProgress progress;
  Mutex mutex;
  CondVar done;
  std::optional<absl::StatusOr<Corpus>> result ABSL_GUARDED_BY(mutex);
};

}  // namespace

v1::CorpusSummary SummaryOf(const CorpusInfo& info) {
  v1::CorpusSummary summary;
  summary.set_documents(info.documents);
  summary.set_dropped_documents(info.dropped_documents);
  summary.set_val_documents(info.val_documents);
  summary.set_tokens(info.tokens);
  summary.set_val_tokens(info.val_tokens);
  summary.set_rows(info.rows);
  summary.set_val_rows(info.val_rows);
  summary.set_null_rows(info.null_rows);
  summary.set_empty_files(info.empty_files);
  if (info.packing) *summary.mutable_packing() = *info.packing;
  summary.mutable_warnings()->Add(info.warnings.begin(), info.warnings.end());
  return summary;
}

absl::StatusOr<Corpus> LoadCorpus(const v1::DataSpec& data, int32_t vocab,
                                  absl::Duration stall_timeout,
                                  const std::function<void()>& on_progress,
                                  const std::function<bool()>& cancelled,
                                  std::shared_ptr<Remote> remote, const TokenCacheOptions& cache,
                                  const HeldOutNeed& need) {
  const RealClock clock;
  const absl::Duration started = clock.Monotonic();
  auto loading = std::make_shared<Loading>();
  loading->progress.remote = std::move(remote);
  std::thread([loading, data, vocab, cache, need] {
    NameThread("corpus");
    absl::StatusOr<Corpus> corpus = BuildCorpus(data, vocab, cache, need, &loading->progress);
    const MutexLock lock(&loading->mutex);
    loading->result = std::move(corpus);
    loading->done.SignalAll();
  }).detach();

  const MutexLock lock(&loading->mutex);
  int64_t seen = 0;
  absl::Duration seen_at = started;
  const absl::Duration told_every = std::min(stall_timeout / 4, absl::Seconds(1));
  while (!loading->result) {
    loading->done.WaitFor(&loading->mutex, std::min(stall_timeout / 4, kLook));
    if (!loading->result && cancelled && cancelled()) {
      loading->progress.cancelled = true;
      return WithReason(absl::CancelledError("stopped as asked while the data was read"),
                        Reason::kStopped);
    }
    const absl::Duration now = clock.Monotonic();
    if (loading->progress.bytes != seen && now - seen_at >= told_every) {
      seen = loading->progress.bytes;
      seen_at = now;
      if (on_progress) on_progress();
    } else if (!loading->result && now - seen_at >= stall_timeout) {
      loading->progress.cancelled = true;
      return ReasonError(absl::StatusCode::kDeadlineExceeded, Reason::kDataStalled,
                         absl::StrFormat("no byte of the data files for %s after %d bytes "
                                         "(data.loader_timeout_seconds); "
                                         "does the file system respond?",
                                         absl::FormatDuration(stall_timeout), seen));
    }
  }
  absl::StatusOr<Corpus> corpus = *std::move(loading->result);
  if (corpus.ok()) corpus->info.load_seconds = absl::ToDoubleSeconds(clock.Monotonic() - started);
  return corpus;
}

}  // namespace nsa::train

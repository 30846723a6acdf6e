#include "worker/train/step/saver.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/reason.h"
#include "common/base/status.h"

namespace nsa::train {
namespace {

constexpr absl::Duration kFinishSlice = absl::Milliseconds(500);  // between collectives of a wait

}  // namespace

std::optional<absl::Duration> WaitAfter(int failures, const LastSavePatience& patience) {
  absl::Duration wait = patience.first_wait, waited;
  for (int i = 1; i < failures; ++i) {
    waited += wait;
    wait = std::min(2 * wait, patience.longest_wait);
  }
  if (waited + wait > patience.total) return std::nullopt;
  return wait;
}

absl::Status Saver::Save(const Snapshot& snapshot, const SaveOptions& how) {
  if (snapshot.state.step() == 0) return absl::OkStatus();
  // The one before may be written for longer than a rank may stand still; it has been reported if
  // it could not be written.
  absl::Status before;
  NSA_RETURN_IF_ERROR(DrainTogether(&before).status());
  return options_.writer->Save(snapshot.tensors, snapshot.state, how);
}

absl::Status Saver::SaveLast(const Snapshot& snapshot, int failures) {
  const std::optional<absl::Duration> wait = WaitAfter(failures + 1, options_.patience);
  return Save(snapshot,
              {.attempt = failures + 1,
               .then = wait ? absl::StrCat("it is tried again in ", absl::FormatDuration(*wait))
                            : "it is not tried again"});
}

absl::StatusOr<std::optional<Ending>> Saver::Finish(const Snapshot& last) {
  for (int failures = 0;;) {
    options_.page->SetPhase(Phase::kCheckpoint);
    absl::Status drained;
    NSA_ASSIGN_OR_RETURN(const bool written, DrainTogether(&drained));
    if (written) return std::nullopt;
    const std::optional<absl::Duration> wait = WaitAfter(++failures, options_.patience);
    if (!wait) {
      return Ending{v1::OUTCOME_FAILED, Word(Reason::kCheckpointFailed),
                    drained.ok() ? "another rank could not write the last checkpoint"
                                 : std::string(drained.message())};
    }
    Pause(*wait);
    NSA_RETURN_IF_ERROR(SaveLast(last, failures));
  }
}

// Waits until every rank has written its part. Returns whether all succeeded, and this rank's
// result in `drained`. A rank may write for much longer than the timeout of a collective, so the
// ranks run a collective every 0.5 s, which also shows on their status pages that they are not
// hung. A rank that still writes after patience.total waits for its writer without collectives, so
// that hang detection finds the rank that makes no progress.
absl::StatusOr<bool> Saver::DrainTogether(absl::Status* drained) {
  const absl::Duration end = options_.clock->Monotonic() + options_.patience.total;
  while (true) {
    std::optional<absl::Status> result = options_.writer->DrainFor(kFinishSlice);
    if (!result && options_.clock->Monotonic() >= end) result = options_.writer->Drain();
    std::array<double, 2> any = {result ? 0.0 : 1.0, result && !result->ok() ? 1.0 : 0.0};
    NSA_RETURN_IF_ERROR(options_.comm->AllReduce("finish", Reduce::kMax, any));
    if (any[0] != 0) continue;
    *drained = *std::move(result);
    return any[1] == 0;
  }
}

absl::Status Saver::AwaitUpload(const Uploader* uploader, absl::Duration longest,
                                absl::Duration idle) {
  options_.page->SetPhase(Phase::kCheckpoint);
  const absl::Duration begin = options_.clock->Monotonic();
  while (true) {
    const absl::Duration now = options_.clock->Monotonic();
    const bool waits = uploader != nullptr && !uploader->UpToDate() && now - begin < longest &&
                       now - std::max(begin, uploader->progress_at()) < idle;
    std::array<double, 1> any = {waits ? 1.0 : 0.0};
    NSA_RETURN_IF_ERROR(options_.comm->AllReduce("finish", Reduce::kMax, any));
    if (any[0] == 0) return absl::OkStatus();
    absl::SleepFor(kFinishSlice);
  }
}

// Waits. Touches the status page every second, so that the wait is not taken for a hang.
void Saver::Pause(absl::Duration wait) {
  options_.page->SetPhase(Phase::kCheckpoint);
  const absl::Duration end = options_.clock->Monotonic() + wait;
  for (absl::Duration now; (now = options_.clock->Monotonic()) < end;) {
    options_.page->Touch();
    absl::SleepFor(std::min(end - now, absl::Seconds(1)));
  }
}

}  // namespace nsa::train

// A request between two threads: that of its connection, which waits for the answer and sends it,
// and the one of the model, which computes it.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "worker/train/serve/answer.h"
#include "worker/train/serve/completion_text.h"
#include "worker/train/serve/task.h"

namespace nsa::train::serve {

// Thread-safe.
class Call {
 public:
  explicit Call(Task task) : task_(std::move(task)) {}

  const Task& task() const { return task_; }

  // To be called before other threads have the call: `changed` is called, with no lock held, when
  // ready() becomes true again and when the call is cancelled.
  void Watch(std::function<void()> changed) { on_change_ = std::move(changed); }

  // For the model's thread.
  //
  // False once the call was cancelled.
  bool wanted() const;
  // Whether it is wanted and takes pieces: less than kUnsentBytes were not taken.
  bool ready() const;
  // Hands a piece over; drops it once the call is cancelled.
  void Put(AnswerPiece piece);
  // There are no more pieces. Nothing after the first time.
  void End(absl::StatusOr<Usage> result);

  // For the connection's thread.
  //
  // The next piece; nothing when none came within `patience`, or when there are no more: then
  // ended() is true.
  std::optional<AnswerPiece> Take(absl::Duration patience);
  bool ended() const;
  // How it ended. Once ended() is true.
  absl::StatusOr<Usage> result() const;

  // Nobody waits for the answer any more. From any thread.
  void Cancel();

 private:
  const Task task_;
  std::function<void()> on_change_ = [] {};
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<AnswerPiece> pieces_ ABSL_GUARDED_BY(mutex_);
  size_t unsent_ ABSL_GUARDED_BY(mutex_) = 0;  // about the bytes of pieces_
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::StatusOr<Usage>> result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::train::serve

#include "worker/agent/rank/await_user.h"

#include <memory>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace nsa::agent {
namespace {

constexpr absl::Duration kUserPatience = absl::Minutes(1);
constexpr absl::Duration kUserPoll = absl::Milliseconds(100);

// Of both threads: the one that asks may outlive the other.
struct Answer {
  Mutex mutex;
  CondVar arrived;
  std::optional<absl::StatusOr<UnixUser>> user ABSL_GUARDED_BY(mutex);
};

}  // namespace

absl::StatusOr<UnixUser> AwaitUnixUser(const std::string& name,
                                       const std::function<bool()>& abandoned) {
  if (name.empty()) {
    return absl::InvalidArgumentError(
        "unix_user: none (this machine runs ranks as the Unix user of the job's token); submit "
        "with a token made with `nsactl token create --unix-user`");
  }
  const auto answer = std::make_shared<Answer>();
  std::thread([answer, name] {
    absl::StatusOr<UnixUser> user = FindUnixUser(name);
    const MutexLock lock(&answer->mutex);
    answer->user = std::move(user);
    answer->arrived.SignalAll();
  }).detach();
  const absl::Duration deadline = RealClock().Monotonic() + kUserPatience;
  const MutexLock lock(&answer->mutex);
  while (!answer->user.has_value()) {
    if (abandoned()) return absl::CancelledError("unix_user: nobody waits for it any more");
    if (RealClock().Monotonic() > deadline) {
      return absl::UnavailableError(absl::StrCat(
          "unix_user: ", name, " cannot be looked up (the directory of users has not answered for ",
          absl::ToInt64Seconds(kUserPatience), " s); try again"));
    }
    answer->arrived.WaitFor(&answer->mutex, kUserPoll);
  }
  return *answer->user;
}

}  // namespace nsa::agent

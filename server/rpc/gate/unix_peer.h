// Who is at the other end of the unix socket. The origin of a call (callers.h) has the numbers of
// users, because asking for their names may take long; the audit log shows the names.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace nsa::server {

struct UnixPeer {
  pid_t pid = 0;  // 0: in a namespace of processes that this one does not see
  uid_t uid = 0;  // of the process when it connected, for certain
  // The user who logged in, before sudo or su; none: it is the same, nobody did, as for a service,
  // or the system does not say. Not certain: it is that of the process which has `pid` by now.
  std::optional<uid_t> login;
};

// Of a connection that was accepted.
UnixPeer PeerOf(int fd);

// "unix:1000"; "unix:0-1000" for root where user 1000 logged in.
std::string OriginOf(const UnixPeer& peer);

// The name of a user: of letters, digits and ._@$\ only, not of digits alone. Empty: it has none,
// another, or the directory of users does not answer. May take as long as that directory does.
std::string NameOfUser(uid_t uid);

// Shows origins to people. Thread-safe; a name is kept for a minute.
class UnixNames {
 public:
  // Runs on a thread of its own, which may outlive the object.
  using Lookup = std::function<std::string(uid_t)>;
  static constexpr absl::Duration kPatience = absl::Seconds(1);
  explicit UnixNames(const Clock& clock, Lookup lookup = NameOfUser)
      : clock_(clock), lookup_(std::move(lookup)) {}

  // "unix:ada", "unix:root (login ada)", and "unix:1234" for a user without a name, or whose name
  // has not been found within kPatience. Other origins stay as they are.
  std::string Shown(const std::string& origin);

 private:
  struct Known {
    std::string name;
    absl::Duration until;  // monotonic
  };
  std::string NameOf(uid_t uid);
  std::string LookUp(uid_t uid) const;

  const Clock& clock_;
  const Lookup lookup_;
  Mutex mutex_;
  std::map<uid_t, Known> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server

// Looks a rank's Unix user up without depending on the directory of users, which may be another
// machine's.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "worker/agent/user/unix_user.h"

namespace nsa::agent {

// FindUnixUser(), asked by a thread of its own: a directory that does not answer holds up nobody
// else. InvalidArgument for an empty name. Unavailable after a minute without an answer; Cancelled
// as soon as `abandoned` returns true, which is called several times a second.
absl::StatusOr<UnixUser> AwaitUnixUser(const std::string& name,
                                       const std::function<bool()>& abandoned);

}  // namespace nsa::agent

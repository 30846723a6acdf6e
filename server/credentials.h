// Who may call a coordinator with these options.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/options.h"
#include "server/rpc/auth.h"
#include "server/store/access_store.h"

namespace nsa::server {

// TCP always needs a token, and so do the changes that the live page makes. Without both and
// without a configured token file there is none. Makes the default token file when it is missing.
absl::StatusOr<Auth> AuthFor(const Options& options, const AccessStore* access);

// The name of the operator whose token the header Authorization of an HTTP request has.
// PermissionDenied for another role's token.
absl::StatusOr<std::string> OperatorOf(const Auth& auth, std::string_view header);

}  // namespace nsa::server

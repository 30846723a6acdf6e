// Which role may call which method, and with how many bytes: the table of all methods.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nsa/v1/access.pb.h"

namespace nsa::server {

// The caller.
struct Caller {
  // The name of a token; "local" over the unix socket without a token, "operator" with the token of
  // token_file, "node NAME" for an agent; empty for a caller of Join, who is not known yet.
  std::string name;
  v1::Role role = v1::ROLE_UNSPECIFIED;
  std::string node;  // with ROLE_AGENT
  // Over the unix socket, and without a token that is known.
  bool local = false;
  std::string unix_user;  // AccessToken.unix_user
  std::string from;       // the address, as gRPC names it
  std::string certificate_name;
};

// PermissionDenied, naming the role that the method needs. A method that is in no row of the table
// is denied to everybody.
absl::Status MayCall(const Caller& caller, std::string_view method);

// The most bytes of a request; 0 for a method that is in no row.
size_t RequestLimit(std::string_view method);

// Whether calls of this method are noted in the audit log.
bool IsAudited(std::string_view method);

}  // namespace nsa::server

// Who may call a coordinator with these options, and how it proves who it is.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls_files.h"
#include "server/options.h"
#include "server/rpc/auth.h"
#include "server/store/access_store.h"

namespace nsa::server {

// What the files that the options name hold, read and checked.
struct Credentials {
  TlsFiles tls;              // without a certificate: TCP is plaintext, on loopback
  std::string token_sha256;  // of the operator's token in token_file; empty: there is none yet
};

// Reads token_file and the files of `tls`, and writes nothing. A default token file may be missing.
// Errors are those of ReadTlsFiles() and ReadSecretFile(); `now` judges the dates of certificates.
absl::StatusOr<Credentials> ReadCredentials(const Options& options, absl::Time now);

// TCP always needs a token, and so do the changes that the live page makes. Without both and
// without a configured token file there is none. Makes the default token file when it is missing.
absl::StatusOr<Auth> AuthFor(const Options& options, const Credentials& credentials,
                             const AccessStore* access);

// The name of the operator whose token the header Authorization of an HTTP request has.
// PermissionDenied for another role's token.
absl::StatusOr<std::string> OperatorOf(const Auth& auth, std::string_view header);

// Whether the header Authorization of an HTTP request from another machine has the token of a
// viewer or an operator, as `Bearer TOKEN` or as the password of `Basic`. A submitter may not see
// all jobs.
bool MayReadPage(const Auth& auth, std::string_view header);

}  // namespace nsa::server

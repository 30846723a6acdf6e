// What a coordinator starts with, read and checked as a whole before anything changes: at the
// start, at a reload while the coordinator before still serves, and by --check-config.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/credentials.h"
#include "server/options.h"

namespace nsa::server {

struct Setup {
  Options options;
  Credentials credentials;
};

// Reads the files that the options name; see ReadCredentials().
absl::StatusOr<Setup> ReadSetup(Options options, absl::Time now);

// Whether a coordinator could listen where the options say, also in the place of the one that runs
// in this state folder.
absl::Status CheckAddresses(const Options& options);

// Whether a coordinator that runs with the options `running` could go on with `next`: the addresses
// as above, and the same state folder. FailedPrecondition for another one.
absl::Status CheckReload(const Options& next, const Options& running);

}  // namespace nsa::server

// What the jobs of each owner take, against their quotas.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "nsa/v1/coordinator.pb.h"
#include "server/decide/rule/quota.h"
#include "server/store/job_store.h"

namespace nsa::server {

// Of one owner.
Taken TakenOf(const JobStore& store, const std::string& owner, absl::Time now);

// The answer to ListUse. `only`: the owner who alone exists for the caller; empty: all do. Jobs
// without an owner, of an earlier version, are nobody's.
v1::ListUseResponse UseOfOwners(const JobStore& store, const Quotas& quotas,
                                const std::string& only, absl::Time now);

}  // namespace nsa::server

// What one rank says to all.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/train/comm/comm.h"

namespace nsa::train {

// Every rank gets what rank `from` has: a text of any length, or an error with its reason. A
// collective; the status page shows `name`.
absl::StatusOr<std::string> ShareText(std::string_view name, int from,
                                      const absl::StatusOr<std::string>& own, Comm* comm);

}  // namespace nsa::train

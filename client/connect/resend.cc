#include "client/connect/resend.h"

#include <fstream>

namespace nsa::client {

absl::StatusOr<std::string> NewRequestId() {
  std::ifstream file("/proc/sys/kernel/random/uuid");
  std::string id;
  if (std::getline(file, id) && id.size() == 36) return id;
  return absl::InternalError(
      "request id: /proc/sys/kernel/random/uuid cannot be read; mount /proc");
}

}  // namespace nsa::client

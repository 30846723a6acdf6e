#include "worker/train/step/ranks/share_text.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "common/base/reason.h"
#include "common/base/status.h"

namespace nsa::train {

absl::StatusOr<std::string> ShareText(std::string_view name, int from,
                                      const absl::StatusOr<std::string>& own, Comm* comm) {
  const std::optional<Reason> own_reason = ReasonOf(own.status());
  std::string reason(own_reason.has_value() ? Word(*own_reason) : "");
  std::string text = own.ok() ? *own : std::string(own.status().message());
  std::array<uint64_t, 3> header = {static_cast<uint64_t>(own.status().code()), reason.size(),
                                    text.size()};
  NSA_RETURN_IF_ERROR(
      comm->Broadcast(name, from, std::as_writable_bytes(std::span<uint64_t>(header))));
  reason.resize(header[1]);
  text.resize(header[2]);
  for (std::string* part : {&reason, &text}) {
    if (part->empty()) continue;
    NSA_RETURN_IF_ERROR(
        comm->Broadcast(name, from, std::as_writable_bytes(std::span<char>(*part))));
  }
  if (comm->rank() == from) return own;
  if (header[0] == 0) return text;
  const absl::Status status(static_cast<absl::StatusCode>(header[0]), text);
  const std::optional<Reason> known = ReasonFromWord(reason);
  return known.has_value() ? WithReason(status, *known) : status;
}

}  // namespace nsa::train

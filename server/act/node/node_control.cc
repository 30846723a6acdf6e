#include "server/act/node/node_control.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "server/watch/nodes_view.h"

namespace nsa::server {
namespace {

constexpr size_t kLongestReason = 200;  // characters
constexpr double kShortestDeadline = 1;
constexpr double kLongestDeadline = 7 * 24 * 3'600;

// The bytes of UTF-8 that begin a character.
size_t Characters(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

absl::Status Check(const v1::CordonNodeRequest& request) {
  if (const size_t characters = Characters(request.reason()); characters > kLongestReason) {
    return absl::InvalidArgumentError(absl::StrCat("reason: ", characters, " characters (at most ",
                                                   kLongestReason, "); shorten it"));
  }
  const double deadline = request.deadline_seconds();
  if (deadline == 0) return absl::OkStatus();
  if (!request.drain()) {
    return absl::InvalidArgumentError(
        "deadline_seconds: set without drain; only a drain has a deadline");
  }
  if (deadline >= kShortestDeadline && deadline <= kLongestDeadline) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("deadline_seconds: %s (from %s to %s, or 0 for none); choose another",
                      Number(deadline), Number(kShortestDeadline), Number(kLongestDeadline)));
}

}  // namespace

absl::Status NodeControl::CheckKnown(const std::string& node) const {
  const auto here = [&](const JobPtr& job) {
    return std::ranges::any_of(
        job->placements(), [&](const v1::RankPlacement& place) { return place.node() == node; });
  };
  if (fleet_.Find(node).has_value() || access_.HasJoined(node) || nodes_.All().contains(node) ||
      std::ranges::any_of(store_.Active(), here)) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("node: no machine has the name '",
                                          CleanLine(CutText(node, 80)),
                                          "'; `nsactl nodes` shows them"));
}

v1::Node NodeControl::View(const std::string& node) const {
  const std::optional<NodeView> seen = fleet_.Find(node);
  NodeView absent;
  absent.info.set_name(node);
  return OneNode(seen.value_or(absent), store_.Active(), nodes_.All());
}

absl::StatusOr<v1::CordonNodeResponse> NodeControl::Cordon(const v1::CordonNodeRequest& request,
                                                           const std::string& by) {
  NSA_RETURN_IF_ERROR(Check(request));
  NSA_RETURN_IF_ERROR(CheckKnown(request.node()));
  const absl::Time now = clock_.Wall();
  v1::NodeCordon cordon;
  cordon.set_reason(CleanLine(request.reason()));
  cordon.set_by(by);
  cordon.set_unix_nanos(absl::ToUnixNanos(now));
  cordon.set_drain(request.drain());
  if (request.deadline_seconds() > 0) {
    cordon.set_deadline_unix_nanos(
        absl::ToUnixNanos(now + absl::Seconds(request.deadline_seconds())));
  }
  NSA_RETURN_IF_ERROR(nodes_.Put(request.node(), cordon));
  v1::CordonNodeResponse response;
  *response.mutable_node() = View(request.node());
  return response;
}

absl::StatusOr<v1::UncordonNodeResponse> NodeControl::Uncordon(
    const v1::UncordonNodeRequest& request) {
  NSA_RETURN_IF_ERROR(CheckKnown(request.node()));
  NSA_RETURN_IF_ERROR(nodes_.Remove(request.node()));
  v1::UncordonNodeResponse response;
  *response.mutable_node() = View(request.node());
  return response;
}

}  // namespace nsa::server

#include "client/admin/node_selection.h"

#include <fnmatch.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "common/job/data/wildcard.h"
#include "common/job/machine_attributes.h"
#include "common/job/require.h"
#include "common/rpc/cordon_text.h"

namespace nsa::client {
namespace {

absl::StatusOr<Requirements> RequirementsIn(const std::vector<std::string>& words) {
  Requirements required;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (equals == std::string::npos || key.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--require: '", word, "' (KEY=VALUE, such as gpu=h100 or rack=a)"));
    }
    if (const std::string fault = RequirementFault(key, value); !fault.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--require: ", key, ": ", fault));
    }
    if (!required.emplace(key, value).second) {
      return absl::InvalidArgumentError(absl::StrCat("--require: ", key, " is given twice"));
    }
  }
  return required;
}

bool HasName(const v1::Node& node, const std::vector<std::string>& patterns) {
  return patterns.empty() || std::ranges::any_of(patterns, [&](const std::string& pattern) {
           return fnmatch(pattern.c_str(), node.info().name().c_str(), 0) == 0;
         });
}

// "gpu-3  READY,CORDONED  2 jobs".
std::string Line(const v1::Node& node) {
  const std::string cordon = CordonWord(node);
  return absl::StrCat(node.info().name(), "  ", node.state(), cordon.empty() ? "" : ",", cordon,
                      "  ", Count(node.job_ids_size(), "job"));
}

}  // namespace

void ChooseNodes(Options* options, NodeSelection* selection) {
  options->OptionalArguments(
      "NODE", &selection->nodes,
      "Names of machines, or patterns of names in quotes: 'gpu-*'; none is needed with --require");
  options->Texts(
      "--require", "KEY=VALUE", &selection->require,
      "Only machines that have it, as resources.require in a job file: gpu=h100, rack=a");
  options->Flag("-y,--yes", &selection->yes, "Do not ask");
}

absl::StatusOr<std::vector<std::string>> ChosenNodes(Session& session, const std::string& command,
                                                     const NodeSelection& selection) {
  if (selection.nodes.empty() && selection.require.empty()) {
    return absl::InvalidArgumentError(
        "NODE: none (at least 1); name a machine, or choose some with a pattern or --require");
  }
  NSA_ASSIGN_OR_RETURN(const Requirements required, RequirementsIn(selection.require));
  if (required.empty() && std::ranges::none_of(selection.nodes, HasWildcard)) {
    return selection.nodes;
  }
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::ListNodesResponse all, client->ListNodes());
  std::vector<std::string> names;
  std::vector<std::string> lines;
  for (const v1::Node& node : all.nodes()) {
    if (!HasName(node, selection.nodes) || !Meets(required, AttributesOf(node.info()))) continue;
    names.push_back(node.info().name());
    lines.push_back(Line(node));
  }
  if (names.empty()) {
    return absl::NotFoundError(absl::StrCat("node: none of ", Count(all.nodes_size(), "machine"),
                                            " matches; `nsactl nodes -o wide` shows them"));
  }
  if (selection.yes) return names;
  const std::string question = absl::StrCat(
      command, ": go on with ", Count(static_cast<int64_t>(names.size()), "machine"), "?");
  const absl::Status confirmed = ConfirmLines(session, command, lines, question);
  if (absl::IsCancelled(confirmed)) session.Note("nothing changed");
  NSA_RETURN_IF_ERROR(confirmed);
  return names;
}

}  // namespace nsa::client

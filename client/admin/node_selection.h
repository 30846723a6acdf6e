// The machines that a command line chooses: by name, by a pattern of names, or by what they have.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli.h"
#include "common/job/data/wildcard.h"

namespace nsa::client {

struct NodeSelection {
  std::vector<std::string> nodes;    // names, or patterns of names: "gpu-*"
  std::vector<std::string> require;  // KEY=VALUE, as resources.require: all of these
  bool yes = false;                  // do not ask

  // The result is a list even when it has one machine.
  bool several() const {
    return nodes.size() > 1 || !require.empty() || (!nodes.empty() && HasWildcard(nodes.front()));
  }
};

// Declares NODE, --require and --yes.
void ChooseNodes(Options* options, NodeSelection* selection);

// The names of the machines. Those that a pattern or --require finds are shown and confirmed first,
// unless with --yes. InvalidArgument when no machine is chosen, NotFound when none matches,
// Cancelled when the answer is no.
absl::StatusOr<std::vector<std::string>> ChosenNodes(Session& session, const std::string& command,
                                                     const NodeSelection& selection);

}  // namespace nsa::client

// nsactl version: prints the versions of nsactl and of the coordinator.
#include "common/base/version.h"

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/show/document.h"
#include "common/base/status.h"
#include "common/rpc/rpc.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

absl::StatusOr<ExitCode> Version(Session& session, bool client_only) {
  nlohmann::ordered_json document;
  document["client"] = {{"version", std::string(kVersion)}, {"revision", std::string(kRevision)}};
  std::string server;
  if (!client_only) {
    NSA_ASSIGN_OR_RETURN(Client * client, session.client());
    const absl::StatusOr<v1::GetVersionResponse> response =
        client->Call<v1::GetVersionResponse>(v1::GetVersionRequest());
    if (absl::IsCancelled(response.status())) return response.status();
    if (response.ok()) {
      document["coordinator"] = ToJson(*response);
      server = absl::StrCat(FullVersion(response->version(), response->revision()), " at ",
                            client->endpoint().address, ", state in ", response->state_dir());
      if (!response->metrics_address().empty()) {
        const std::string url =
            absl::StrCat(IsLoopback(response->metrics_address()) ? "http://" : "https://",
                         response->metrics_address(), "/");
        absl::StrAppend(&server, ", page on ", url, ", metrics on ", url, "metrics");
      }
    } else {
      // Not an error: the version of nsactl itself is still shown.
      document["coordinator"] = {{"error", std::string(response.status().message())}};
      server = absl::StrCat("not reached: ", std::string(response.status().message()));
    }
  }
  if (session.structured()) {
    session.PrintDocument(document);
    return ExitCode::kOk;
  }
  session.out() << "nsactl          " << FullVersion() << "\n";
  if (!client_only) session.out() << "nsa-coordinator " << server << "\n";
  return ExitCode::kOk;
}

}  // namespace

void AddVersion(Cli* cli) {
  const auto client_only = std::make_shared<bool>(false);
  Options options = cli->Add(
      {.name = "version",
       .what = "Show the versions of nsactl and of the coordinator",
       .group = "Service",
       .more = "A coordinator that cannot be reached is shown as such; it is not an error.",
       .examples = "nsactl version\nnsactl version --client",
       .run = [client_only](Session& session) { return Version(session, *client_only); }});
  options.Flag("--client", client_only.get(), "Only nsactl's version; do not ask the coordinator");
}

}  // namespace nsa::client

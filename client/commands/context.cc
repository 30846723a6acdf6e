// nsactl context: names for coordinators.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/connect/endpoint.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

constexpr char kHowToMakeCertificates[] =
    "A coordinator that other machines can reach needs a certificate and a token of every client. "
    "On its machine,\n`nsactl admin init-tls DIR --host NAME --client YOU` makes both and prints "
    "what to write into the coordinator's\nconfiguration, what to copy to the client's machine, "
    "and the command with which to name it there.";

struct ContextFlags {
  std::string name;
  std::string token_file;
  std::string ca_file;
  std::string certificate_file;
  std::string private_key_file;
};

absl::Status NoSuchContext(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("context: '", name, "' is not in ",
                                          ClientConfigPath().string(),
                                          "; see `nsactl context list`"));
}

absl::StatusOr<ExitCode> ListContexts(Session& session) {
  NSA_ASSIGN_OR_RETURN(const v1::ClientConfig config, ReadClientConfig(ClientConfigPath()));
  if (session.structured()) {
    session.PrintDocument(config);
    return ExitCode::kOk;
  }
  if (session.flags().format == Format::kName) {
    for (const auto& context : config.contexts()) session.out() << context.name() << "\n";
    return ExitCode::kOk;
  }
  if (config.contexts().empty()) {
    session.Note(absl::StrCat("no contexts in ", ClientConfigPath().string(),
                              "; create one with `nsactl context set NAME --address HOST:PORT`"));
    return ExitCode::kOk;
  }
  Table table({{"CURRENT"}, {"NAME"}, {"ADDRESS"}, {"TLS"}, {"TOKEN FILE"}});
  for (const v1::ClientContext& context : config.contexts()) {
    const bool tls =
        !context.tls().client_ca_file().empty() || !context.tls().certificate_file().empty();
    table.Add({context.name() == config.current() ? "*" : "", context.name(), context.address(),
               tls ? "yes" : "-", context.token_file().empty() ? "-" : context.token_file()});
  }
  session.PrintTable(table);
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> Use(Session& session, const ContextFlags& flags) {
  NSA_ASSIGN_OR_RETURN(v1::ClientConfig config, ReadClientConfig(ClientConfigPath()));
  const bool none = flags.name == "none";
  if (!none && FindContext(config, flags.name) == nullptr) {
    return NoSuchContext(flags.name);
  }
  config.set_current(none ? "" : flags.name);
  NSA_RETURN_IF_ERROR(WriteClientConfig(ClientConfigPath(), config));
  session.Note(none ? "no context in use; nsactl calls this machine's coordinator"
                    : absl::StrCat("now using ", flags.name));
  return ExitCode::kOk;
}

// Creates the context, or changes the given fields of one. The address is the global flag
// --address.
absl::StatusOr<ExitCode> Set(Session& session, const ContextFlags& flags) {
  if (flags.name.empty()) {
    return absl::InvalidArgumentError("NAME: empty (a name for the context); name it");
  }
  if (flags.name == "none") {
    return absl::InvalidArgumentError("context: 'none' stands for no context; choose another name");
  }
  NSA_ASSIGN_OR_RETURN(v1::ClientConfig config, ReadClientConfig(ClientConfigPath()));
  v1::ClientContext* context = nullptr;
  for (v1::ClientContext& each : *config.mutable_contexts()) {
    if (each.name() == flags.name) context = &each;
  }
  if (context == nullptr) {
    if (session.flags().address.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "context: '", flags.name, "' is new and needs an address; add --address HOST:PORT"));
    }
    context = config.add_contexts();
    context->set_name(flags.name);
  }
  const auto absolute = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::absolute(path, error).lexically_normal().string();
  };
  if (!session.flags().address.empty()) {
    context->set_address(NormalAddress(session.flags().address));
  }
  if (!flags.token_file.empty()) context->set_token_file(absolute(flags.token_file));
  v1::TlsConfig* tls = context->mutable_tls();
  if (!flags.ca_file.empty()) tls->set_client_ca_file(absolute(flags.ca_file));
  if (!flags.certificate_file.empty()) {
    tls->set_certificate_file(absolute(flags.certificate_file));
  }
  if (!flags.private_key_file.empty()) {
    tls->set_private_key_file(absolute(flags.private_key_file));
  }
  if (tls->ByteSizeLong() == 0) context->clear_tls();
  NSA_RETURN_IF_ERROR(WriteClientConfig(ClientConfigPath(), config));
  session.Note(absl::StrCat(flags.name, " is ", context->address(), "; `nsactl context use ",
                            flags.name, "` makes it the one in use"));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> Delete(Session& session, const ContextFlags& flags) {
  NSA_ASSIGN_OR_RETURN(v1::ClientConfig config, ReadClientConfig(ClientConfigPath()));
  auto& contexts = *config.mutable_contexts();
  const auto found = std::ranges::find(contexts, flags.name, &v1::ClientContext::name);
  if (found == contexts.end()) return NoSuchContext(flags.name);
  contexts.erase(found);
  const bool used = config.current() == flags.name;
  if (used) config.clear_current();
  NSA_RETURN_IF_ERROR(WriteClientConfig(ClientConfigPath(), config));
  session.Note(absl::StrCat(
      flags.name, " deleted; its token and certificates stay where they are",
      used ? "; no context is in use now: nsactl calls this machine's coordinator" : ""));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> ShowContext(Session& session) {
  NSA_ASSIGN_OR_RETURN(const Endpoint endpoint,
                       ResolveEndpoint(session.flags().address, session.flags().context));
  // With a certificate alone, too: the system's authorities are trusted then.
  const bool tls = endpoint.tls.ByteSizeLong() > 0;
  // The token itself is never shown.
  const nlohmann::ordered_json document = {{"address", endpoint.address},
                                           {"source", endpoint.source},
                                           {"tls", tls},
                                           {"token", !endpoint.token.empty()},
                                           {"config", ClientConfigPath().string()}};
  if (session.structured()) {
    session.PrintDocument(document);
    return ExitCode::kOk;
  }
  session.out() << "address  " << endpoint.address << "\nfrom     " << endpoint.source
                << "\ntls      " << (tls ? "yes" : "no") << "\ntoken    "
                << (endpoint.token.empty() ? "no" : "yes") << "\nfile     "
                << ClientConfigPath().string() << "\n";
  return ExitCode::kOk;
}

}  // namespace

void AddContext(Cli* cli) {
  const auto flags = std::make_shared<ContextFlags>();
  Options group = cli->Add(
      {.name = "context",
       .what = "Name coordinators and choose one",
       .group = "Service",
       .more = "Contexts are kept in ~/.config/nsa/config.yaml ($NSACTL_CONFIG). A flag overrides "
               "an environment variable,\nwhich overrides the context in use; without any of them "
               "nsactl calls this machine's coordinator. A\ncoordinator that other machines can "
               "reach needs a token, and a client certificate signed by its\n"
               "tls.client_ca_file; `nsactl admin init-tls` makes them.",
       .examples = "nsactl context set lab --address lab:50951 --token-file ~/lab.token --ca-file "
                   "~/lab-ca.crt --certificate-file ~/me.crt --private-key-file ~/me.key\n"
                   "nsactl context use lab\n"
                   "nsactl context show"});
  cli->Add({.name = "list",
            .what = "List the contexts",
            .examples = "nsactl context list",
            .run = ListContexts,
            .parent = &group});
  Options use = cli->Add({.name = "use",
                          .what = "Choose the context in use",
                          .more = "'none' goes back to this machine's coordinator.",
                          .examples = "nsactl context use lab\nnsactl context use none",
                          .run = [flags](Session& session) { return Use(session, *flags); },
                          .parent = &group});
  use.Argument("NAME", &flags->name, "Context");
  Options set = cli->Add({.name = "set",
                          .what = "Create a context, or change the given fields of one",
                          .more = kHowToMakeCertificates,
                          .examples = "nsactl context set lab --address lab:50951 --token-file "
                                      "~/token --ca-file ~/ca.crt --certificate-file ~/me.crt "
                                      "--private-key-file ~/me.key",
                          .run = [flags](Session& session) { return Set(session, *flags); },
                          .parent = &group});
  set.Argument("NAME", &flags->name, "Context");
  set.Text("--token-file", "FILE", &flags->token_file, "File with the bearer token");
  set.Text("--ca-file", "FILE", &flags->ca_file,
           "PEM authorities that sign the coordinator's certificate");
  set.Text("--certificate-file", "FILE", &flags->certificate_file,
           "PEM certificate of this client");
  set.Text("--private-key-file", "FILE", &flags->private_key_file, "PEM key of that certificate");
  Options remove =
      cli->Add({.name = "delete",
                .what = "Delete a context",
                .more = "Its token file and certificates stay. If it was in use, nsactl calls this "
                        "machine's coordinator from then on.",
                .examples = "nsactl context delete lab",
                .run = [flags](Session& session) { return Delete(session, *flags); },
                .parent = &group});
  remove.Argument("NAME", &flags->name, "Context");
  cli->Add({.name = "show",
            .what = "Show which coordinator nsactl calls, and why",
            .examples = "nsactl context show\nnsactl --context lab context show",
            .run = ShowContext,
            .parent = &group});
}

}  // namespace nsa::client

// nsactl admin: certificates for a coordinator that other machines can reach. Works on files of
// this machine and needs no coordinator.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/admin/absolute.h"
#include "client/admin/backup.h"
#include "client/admin/tls_folder.h"
#include "client/cli.h"
#include "client/show/human.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

constexpr int kMostDays = 3650;
constexpr char kPort[] = ":50951";

struct TlsFlags {
  std::string folder;
  TlsWish wish;
};

std::string TlsLine(const std::string& folder, const std::string& name) {
  return absl::StrCat("tls: {certificate_file: ", folder, "/", name,
                      ".crt, private_key_file: ", folder, "/", name,
                      ".key, client_ca_file: ", folder, "/ca.crt}\n");
}

// What to write into which file, and what to copy where.
std::string Instructions(const std::string& folder, const TlsWish& wish,
                         const std::vector<std::string>& hosts) {
  const std::string host = hosts.empty() ? "HOST" : hosts.front();
  std::string text =
      absl::StrCat("\nIn the coordinator's configuration:\n\n  listen_address: 0.0.0.0", kPort,
                   "\n  token_file: ", folder, "/token\n  ", TlsLine(folder, "coordinator"));
  for (const std::string& node : wish.agents) {
    absl::StrAppend(&text, "\nIn the agent's configuration on ", node, ", with ", node, ".crt, ",
                    node, ".key and ca.crt copied to /etc/nsa there,\nand the join token that `",
                    "(umask 077; nsactl token create --role agent --node ", node,
                    " > join.token)` makes, all the agent's\nuser's and with mode 0600:\n\n",
                    "  node_name: ", node, "\n  coordinator_address: ", host, kPort,
                    "\n  join_token_file: /etc/nsa/join.token\n  ", TlsLine("/etc/nsa", node));
  }
  for (const std::string& client : wish.clients) {
    absl::StrAppend(
        &text, "\nOn the machine of ", client, ", with ", client, ".crt, ", client,
        ".key and ca.crt copied to ~, and the token that\n", "`(umask 077; nsactl token create ",
        client, " > token)` makes:\n\n  nsactl context set ", host, " --address ", host, kPort,
        " --token-file ~/token --ca-file ~/ca.crt --certificate-file ~/", client,
        ".crt --private-key-file ~/", client, ".key\n  nsactl context use ", host, "\n");
  }
  absl::StrAppend(&text, "\nca.key signs further certificates: it stays in ", folder,
                  ", and nothing else needs it.\n");
  return text;
}

void Print(Session& session, const std::string& folder, const std::vector<TlsEntry>& entries,
           const char* fresh) {
  if (session.structured()) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const TlsEntry& entry : entries) {
      list.push_back({{"name", entry.name},
                      {"certificate_file", absl::StrCat(folder, "/", entry.name, ".crt")},
                      {"common_name", entry.facts.name},
                      {"hosts", entry.facts.hosts},
                      {"authority", entry.facts.authority},
                      {"until_unix_nanos", absl::ToUnixNanos(entry.facts.until)},
                      {"made", entry.made}});
    }
    session.PrintDocument(nlohmann::ordered_json{{"folder", folder}, {"certificates", list}});
    return;
  }
  Table table({{"CERTIFICATE"}, {"FOR"}, {"VALID UNTIL"}, {"STATE"}});
  for (const TlsEntry& entry : entries) {
    if (session.flags().format == Format::kName) {
      session.out() << entry.name << "\n";
      continue;
    }
    table.Add(
        {absl::StrCat(folder, "/", entry.name, ".crt"),
         entry.facts.hosts.empty() ? entry.facts.name : absl::StrJoin(entry.facts.hosts, ", "),
         Timestamp(absl::ToUnixNanos(entry.facts.until)), entry.made ? fresh : "kept"});
  }
  if (!table.empty()) session.PrintTable(table);
}

absl::StatusOr<ExitCode> Init(Session& session, TlsFlags flags) {
  TlsWish& wish = flags.wish;
  if (wish.agents.empty() && wish.clients.empty()) wish.clients = {"client"};
  const std::string folder = Absolute(flags.folder);
  NSA_ASSIGN_OR_RETURN(const auto entries, InitTls(folder, wish, session.now()));
  Print(session, folder, entries, "made");
  if (session.flags().format == Format::kTable || session.wide()) {
    session.out() << Instructions(folder, wish, entries[1].facts.hosts);
  }
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RenewAll(Session& session, const TlsFlags& flags) {
  const std::string folder = Absolute(flags.folder);
  NSA_ASSIGN_OR_RETURN(const auto entries, RenewTls(folder, flags.wish.days, session.now()));
  Print(session, folder, entries, "renewed");
  if (entries.front().facts.until < session.now() + absl::Hours(24) * flags.wish.days) {
    session.Note("no certificate is valid longer than the authority ca.crt");
  }
  session.Note(
      "copy each .crt to where it is used, then reload the coordinator; agents read their new "
      "files without a restart");
  return ExitCode::kOk;
}

}  // namespace

void AddAdmin(Cli* cli) {
  const auto flags = std::make_shared<TlsFlags>();
  Options group = cli->Add(
      {.name = "admin",
       .what = "Make certificates for a coordinator, copy its state, put a copy back",
       .group = "Service",
       .more = "On files of this machine.",
       .examples = "nsactl admin init-tls /etc/nsa/tls --host lab --agent gpu-01 --client ada\n"
                   "nsactl admin renew-tls /etc/nsa/tls\n"
                   "nsactl admin backup /mnt/backup/nsa"});
  Options init = cli->Add(
      {.name = "init-tls",
       .what = "Make an authority, certificates and a token, and print what to configure",
       .more = "Writes into DIR: ca, coordinator and a certificate for each --agent and --client, "
               "as NAME.crt and\nNAME.key, and token, an operator's. Files have mode 0600. What "
               "is there is kept, so that the same\ncommand with another --agent or --client adds "
               "that one.",
       .examples = "nsactl admin init-tls /etc/nsa/tls --host lab --host 10.0.0.5 --agent gpu-01 "
                   "--client ada\nnsactl admin init-tls ./tls --days 90",
       .run = [flags](Session& session) { return Init(session, *flags); },
       .parent = &group});
  init.Argument("DIR", &flags->folder, "Folder; made if it is not there");
  init.Texts("--host", "NAME", &flags->wish.hosts,
             "Name or address by which clients and agents reach the coordinator; may be repeated "
             "(default: this machine's name)");
  init.Texts("--agent", "NODE", &flags->wish.agents, "A node's agent; may be repeated");
  init.Texts("--client", "NAME", &flags->wish.clients,
             "A user of nsactl; may be repeated (default, without --agent: client)");
  Options renew = cli->Add(
      {.name = "renew-tls",
       .what = "Sign the certificates of such a folder again",
       .more = "Keys and names stay; each NAME.crt is replaced at once, and keeps its owner and "
               "mode. The authority itself,\nvalid for ten years, is not renewed.",
       .examples = "nsactl admin renew-tls /etc/nsa/tls --days 365",
       .run = [flags](Session& session) { return RenewAll(session, *flags); },
       .parent = &group});
  renew.Argument("DIR", &flags->folder, "Folder that init-tls made");
  for (Options* options : {&init, &renew}) {
    options->Number("--days", &flags->wish.days, {.least = 1, .most = kMostDays},
                    "How long certificates are valid, from now (default: 825)");
  }
  AddBackup(cli, group);
}

}  // namespace nsa::client

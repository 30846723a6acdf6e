// nsactl token: who may call the coordinator.

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/show/human.h"
#include "common/base/status.h"
#include "common/job/enum_words.h"

namespace nsa::client {
namespace {

struct TokenFlags {
  std::string name;
  std::string role = "submitter";
  std::string node;
  std::string valid;
  std::string unix_user;
};

std::string RoleWord(v1::Role role) {
  const auto* const value =
      role == v1::ROLE_UNSPECIFIED ? nullptr : v1::Role_descriptor()->FindValueByNumber(role);
  return value == nullptr ? "?" : EnumWord(*value);
}

absl::StatusOr<v1::Role> RoleOf(const std::string& word) {
  for (const v1::Role role :
       {v1::ROLE_VIEWER, v1::ROLE_SUBMITTER, v1::ROLE_OPERATOR, v1::ROLE_AGENT}) {
    if (word == RoleWord(role)) return role;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--role: '", word, "' (viewer, submitter, operator or agent); choose one of these"));
}

std::string WhoseText(const v1::AccessToken& token) {
  return token.role() == v1::ROLE_AGENT ? absl::StrCat("node ", token.node()) : token.name();
}

// The secret alone goes to standard output: `(umask 077; nsactl token create … > file)`.
template <typename Response>
void ShowSecret(Session& session, const Response& response, const std::string& what) {
  if (session.structured()) return session.PrintDocument(response);
  session.out() << response.secret() << "\n" << std::flush;
  const v1::AccessToken& token = response.token();
  session.Note(absl::StrCat(
      what, " ", token.id(), " of ", WhoseText(token), ", role ", RoleWord(token.role()),
      token.unix_user().empty() ? "" : absl::StrCat(", Unix user ", token.unix_user()),
      ", valid until ",
      token.expire_unix_nanos() == 0 ? "it is revoked" : Timestamp(token.expire_unix_nanos()),
      ". It is shown only this once; keep it in a file with mode 0600."));
}

absl::StatusOr<ExitCode> Create(Session& session, const TokenFlags& flags) {
  v1::CreateTokenRequest request;
  request.set_name(flags.name);
  request.set_node(flags.node);
  request.set_unix_user(flags.unix_user);
  NSA_ASSIGN_OR_RETURN(const v1::Role role, RoleOf(flags.role));
  request.set_role(role);
  NSA_ASSIGN_OR_RETURN(const int64_t seconds, ParseSeconds("--valid", flags.valid));
  request.set_valid_seconds(seconds);
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const auto response, client->Call<v1::CreateTokenResponse>(request));
  ShowSecret(session, response, role == v1::ROLE_AGENT ? "made the join token" : "made the token");
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> Rotate(Session& session, const TokenFlags& flags) {
  v1::RotateTokenRequest request;
  request.set_token(flags.name);
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const auto response, client->Call<v1::RotateTokenResponse>(request));
  ShowSecret(session, response, "gave another secret to the token");
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> Revoke(Session& session, const TokenFlags& flags) {
  v1::RevokeTokenRequest request;
  request.set_token(flags.name);
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const auto response, client->Call<v1::RevokeTokenResponse>(request));
  const v1::AccessToken& token = response.token();
  if (!session.PrintDocumentOrName(token, token.id())) {
    session.out() << "revoked " << token.id() << " of " << WhoseText(token) << "\n";
  }
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> ListTokens(Session& session) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  v1::ListTokensRequest request;
  v1::ListTokensResponse all;
  do {
    NSA_ASSIGN_OR_RETURN(const auto page, client->Call<v1::ListTokensResponse>(request));
    all.mutable_tokens()->MergeFrom(page.tokens());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  if (session.structured()) {
    session.PrintDocument(all);
    return ExitCode::kOk;
  }
  Table table(
      {{"ID"}, {"ROLE"}, {"WHOSE"}, {"UNIX USER"}, {"AGE", true}, {"VALID UNTIL"}, {"KIND"}});
  for (const v1::AccessToken& token : all.tokens()) {
    if (session.flags().format == Format::kName) {
      session.out() << token.id() << "\n";
      continue;
    }
    const bool agent = token.role() == v1::ROLE_AGENT;
    table.Add({token.id(), RoleWord(token.role()), WhoseText(token),
               token.unix_user().empty() ? "-" : token.unix_user(),
               ShortAge(session.now(), token.create_unix_nanos()),
               token.expire_unix_nanos() == 0 ? "-" : Timestamp(token.expire_unix_nanos()),
               !agent           ? "token"
               : token.joined() ? "secret of a node that has joined"
                                : "join token, not used yet"});
  }
  if (!table.empty()) session.PrintTable(table);
  if (all.tokens().empty()) session.Note("no tokens; make one with `nsactl token create NAME`");
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> Audit(Session& session, int tail) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  v1::ListAuditRequest request;
  request.set_tail(tail);
  Table table({{"TIME"}, {"WHO"}, {"FROM"}, {"WHAT"}, {"ON"}, {"RESULT"}});
  while (true) {
    NSA_ASSIGN_OR_RETURN(const auto page, client->Call<v1::ListAuditResponse>(request));
    if (page.entries().empty()) break;
    for (const v1::AuditEntry& entry : page.entries()) {
      request.set_after_sequence(entry.sequence());
      if (session.structured()) {
        session.PrintStreamed(entry);
        continue;
      }
      table.Add({Timestamp(entry.unix_nanos()),
                 entry.who().empty() ? "-" : entry.who(),
                 entry.from(),
                 entry.what(),
                 entry.subject(),
                 {entry.result(), entry.result() == "OK" ? Colour::kNone : Colour::kBad}});
    }
  }
  if (!table.empty()) session.PrintTable(table);
  if (!session.structured() && table.empty()) session.Note("nothing has been changed yet");
  return ExitCode::kOk;
}

}  // namespace

void AddToken(Cli* cli) {
  const auto flags = std::make_shared<TokenFlags>();
  Options group = cli->Add(
      {.name = "token",
       .what = "Make, list, rotate and revoke tokens",
       .group = "Service",
       .more = "For operators. The coordinator keeps only hashes; a change counts at once.",
       .examples =
           "(umask 077; nsactl token create ada --role submitter --valid 90d > ada.token)\n"
           "(umask 077; nsactl token create ada --role submitter --unix-user ada > ada.token)\n"
           "(umask 077; nsactl token create --role agent --node gpu-02 > join.token)\n"
           "nsactl token revoke ada"});
  Options create = cli->Add(
      {.name = "create",
       .what = "Make a token and print its secret, once",
       .more = "Roles: viewer (sees everything, changes nothing), submitter (submits; sees "
               "and changes its own jobs),\noperator (everything), agent (a join token "
               "for the agent of --node: it joins once; valid for an hour).",
       .examples = "nsactl token create ada --role viewer\n"
                   "(umask 077; nsactl token create --role agent --node gpu-02 > join.token)",
       .run = [flags](Session& session) { return Create(session, *flags); },
       .parent = &group});
  create.OptionalArgument("NAME", &flags->name, "Whose token it is; not with --role agent");
  create.Text("--role", "ROLE", &flags->role, "viewer, submitter (default), operator or agent");
  create.Text("--node", "NODE", &flags->node, "With --role agent: the node_name of the agent");
  create.Text("--unix-user", "USER", &flags->unix_user,
              "The user that runs its jobs on machines with unix_users (agent.yaml)");
  create.Text("--valid", "DURATION", &flags->valid, "e.g. 30d or 12h (default: until revoked)");
  cli->Add({.name = "list",
            .what = "List tokens and the secrets of nodes, without what is secret",
            .examples = "nsactl token list",
            .run = ListTokens,
            .parent = &group});
  Options rotate = cli->Add({.name = "rotate",
                             .what = "Give a token another secret; the old one is refused at once",
                             .examples = "(umask 077; nsactl token rotate ada > ada.token)",
                             .run = [flags](Session& session) { return Rotate(session, *flags); },
                             .parent = &group});
  Options revoke = cli->Add({.name = "revoke",
                             .what = "Remove a token or the secret of a node",
                             .examples = "nsactl token revoke ada\nnsactl token revoke gpu-02",
                             .run = [flags](Session& session) { return Revoke(session, *flags); },
                             .parent = &group});
  rotate.Argument("TOKEN", &flags->name, "Id or name");
  revoke.Argument("TOKEN", &flags->name, "Id, name, or a node that has joined");
}

void AddAudit(Cli* cli) {
  const auto tail = std::make_shared<int>(100);
  Options options = cli->Add(
      {.name = "audit",
       .what = "Show who changed what, from where, and with which result",
       .group = "Service",
       .more = "For operators: submits, stops, resumes, deletions, tokens and nodes that joined, "
               "also those that were refused.",
       .examples = "nsactl audit\nnsactl audit --tail 0 -o json",
       .run = [tail](Session& session) { return Audit(session, *tail); }});
  options.Number("--tail", tail.get(), {.least = 0}, "Only the last N (default: 100; 0: all)");
}

}  // namespace nsa::client

// Usage, help, errors and exit codes.
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "client/show/human.h"
#include "common/rpc/rpc.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "tests/client/nsactl_harness.h"
#include "tests/testing/net/certificates.h"
#include "tests/testing/net/silent_server.h"

namespace nsa::client {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CliTest : public NsactlTest {};

const std::vector<std::vector<std::string>> kCommands = {{"init"},
                                                         {"submit"},
                                                         {"validate"},
                                                         {"data", "prepare"},
                                                         {"data", "inspect"},
                                                         {"list"},
                                                         {"describe"},
                                                         {"watch"},
                                                         {"top"},
                                                         {"logs"},
                                                         {"events"},
                                                         {"metrics"},
                                                         {"samples"},
                                                         {"plot"},
                                                         {"compare"},
                                                         {"bisect"},
                                                         {"replay"},
                                                         {"report"},
                                                         {"sweep"},
                                                         {"stop"},
                                                         {"resume"},
                                                         {"fork"},
                                                         {"delete"},
                                                         {"label"},
                                                         {"note"},
                                                         {"mute"},
                                                         {"unmute"},
                                                         {"dump-stack"},
                                                         {"profile"},
                                                         {"checkpoint", "list"},
                                                         {"nodes"},
                                                         {"quota"},
                                                         {"node", "cordon"},
                                                         {"node", "drain"},
                                                         {"node", "uncordon"},
                                                         {"checkpoint", "verify"},
                                                         {"checkpoint", "pin"},
                                                         {"checkpoint", "unpin"},
                                                         {"token", "create"},
                                                         {"token", "list"},
                                                         {"token", "rotate"},
                                                         {"token", "revoke"},
                                                         {"audit"},
                                                         {"admin", "init-tls"},
                                                         {"admin", "renew-tls"},
                                                         {"admin", "backup"},
                                                         {"admin", "verify"},
                                                         {"doctor"},
                                                         {"export"},
                                                         {"import"},
                                                         {"generate"},
                                                         {"chat"},
                                                         {"serve"},
                                                         {"eval"},
                                                         {"needle"},
                                                         {"data", "needle"},
                                                         {"version"},
                                                         {"completion"},
                                                         {"context", "list"},
                                                         {"context", "use"},
                                                         {"context", "set"},
                                                         {"context", "delete"},
                                                         {"context", "show"}};

TEST_F(CliTest, EveryCommandHasHelpWithAnExample) {
  for (std::vector<std::string> command : kCommands) {
    std::string path = "nsactl";
    for (const std::string& word : command) path += " " + word;
    std::vector<std::string> help = command;
    help.insert(help.begin(), "help");
    const Ran by_help = RunAlone(help);
    command.push_back("--help");
    const Ran by_flag = RunAlone(command);
    EXPECT_EQ(by_flag.code, ExitCode::kOk) << path;
    EXPECT_EQ(by_help.out, by_flag.out) << path;
    EXPECT_THAT(by_flag.out, AllOf(HasSubstr("Usage: " + path), HasSubstr("Examples:\n  "),
                                   Not(HasSubstr("REQUIRED")), Not(HasSubstr(":POSITIVE")),
                                   Not(ContainsRegex("[(]default [^:]"))));
    for (const absl::string_view line : absl::StrSplit(by_flag.out, '\n')) {
      const bool table = absl::StartsWith(line, " ");  // of flags, or an example
      EXPECT_LE(table ? 0 : DisplayWidth(std::string(line)), 120) << path << ": " << line;
    }
  }
}

TEST_F(CliTest, TheHelpOfAGroupListsItsCommands) {
  for (const auto& command : kCommands) {
    if (command.size() < 2) continue;
    EXPECT_THAT(RunAlone({command[0], "--help"}).out, HasSubstr("\n  " + command[1] + " "));
  }
}

TEST_F(CliTest, TheMainHelpListsCommandsAndEveryExitCode) {
  const Ran ran = RunAlone({"--help"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  for (const auto& command : kCommands) EXPECT_THAT(ran.out, HasSubstr("\n  " + command[0] + " "));
  for (const char* code : {"0", "1", "2", "3", "4", "5", "6", "7", "130"}) {
    EXPECT_THAT(ran.out, ContainsRegex(std::string("\n  ") + code + "  +[a-z]"));
  }
}

TEST_F(CliTest, WithoutACommandItShowsHelpAndIsUsage) {
  const Ran ran = RunAlone({});
  EXPECT_EQ(ran.code, ExitCode::kUsage);
  EXPECT_THAT(ran.err, HasSubstr("Usage: nsactl"));
}

TEST_F(CliTest, AMisspeltCommandIsSuggested) {
  const Ran ran = RunAlone({"lits"});
  EXPECT_EQ(ran.code, ExitCode::kUsage);
  EXPECT_EQ(ran.err,
            "nsactl: unknown command 'lits' (did you mean 'list'?); see `nsactl --help`\n");
}

TEST_F(CliTest, ACommandIsSuggestedByItsNameInOtherPrograms) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"ls", "list"},         {"ps", "list"},        {"get", "list"},     {"cancel", "stop"},
      {"kill", "stop"},       {"rm", "delete"},      {"run", "submit"},   {"show", "describe"},
      {"status", "describe"}, {"restart", "resume"}, {"evaluate", "eval"}};
  for (const auto& [other, command] : names) {
    const Ran ran = RunAlone({other, "demo"});
    EXPECT_EQ(ran.code, ExitCode::kUsage) << other;
    EXPECT_EQ(ran.err, absl::StrCat("nsactl: unknown command '", other, "' (did you mean '",
                                    command, "'?); see `nsactl --help`\n"));
  }
  EXPECT_THAT(RunAlone({"context", "ls"}).err, HasSubstr("(did you mean 'list'?)"));
  EXPECT_THAT(RunAlone({"context", "rm", "lab"}).err, HasSubstr("(did you mean 'delete'?)"));
  EXPECT_THAT(RunAlone({"token", "rm", "x"}).err, HasSubstr("(did you mean 'revoke'?)"));
  EXPECT_EQ(RunAlone({"checkpoint", "kill"}).err,
            "nsactl: unknown command 'kill'; see `nsactl checkpoint --help`\n")
      << "it has no such command";
}

TEST_F(CliTest, AnUnknownWordIsNamedWhereverItStands) {
  EXPECT_EQ(RunAlone({"checkpoint", "nonsense"}).err,
            "nsactl: unknown command 'nonsense'; see `nsactl checkpoint --help`\n");
  EXPECT_EQ(RunAlone({"context", "shwo"}).err,
            "nsactl: unknown command 'shwo' (did you mean 'show'?); see `nsactl context --help`\n");
  const Ran help = RunAlone({"help", "lits"});
  EXPECT_EQ(help.code, ExitCode::kUsage);
  EXPECT_EQ(help.err,
            "nsactl: unknown command 'lits' (did you mean 'list'?); see `nsactl --help`\n");
  EXPECT_EQ(help.out, "");
  EXPECT_EQ(RunAlone({"help", "checkpoint", "nope"}).code, ExitCode::kUsage);
  EXPECT_EQ(RunAlone({"help"}).code, ExitCode::kOk);
}

TEST_F(CliTest, AnUnknownCommandIsAnErrorWithHelpToo) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"lits", "--help"}, {"--help", "lits"}, {"lits", "demo", "-h"}, {"-q", "lits", "-h"}}) {
    const Ran ran = RunAlone(words);
    EXPECT_EQ(ran.code, ExitCode::kUsage) << words[0];
    EXPECT_EQ(ran.out, "");
    EXPECT_EQ(ran.err,
              "nsactl: unknown command 'lits' (did you mean 'list'?); see `nsactl --help`\n");
  }
  const Ran far = RunAlone({"frobnicate", "--help"});
  EXPECT_EQ(far.code, ExitCode::kUsage);
  EXPECT_EQ(far.err, "nsactl: unknown command 'frobnicate'; see `nsactl --help`\n")
      << "none is near";
  EXPECT_EQ(RunAlone({"context", "shwo", "--help"}).err,
            "nsactl: unknown command 'shwo' (did you mean 'show'?); see `nsactl context --help`\n");
  EXPECT_EQ(RunAlone({"stop", "demo", "--help"}).code, ExitCode::kOk) << "a job is no command";
}

TEST_F(CliTest, AValueThatIsNoNumberIsSaidToBeNone) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"needle", "./out", "--lengths", "64,abc"}, "--lengths: 'abc' (a whole number from 32 to"},
      {{"needle", "./out", "--lengths", "8"}, "--lengths: '8' (a whole number from 32 to 1048576)"},
      {{"needle", "./out", "--depths", "abc"}, "--depths: 'abc' (a whole number from 1 to 101)"},
      {{"list", "--limit", "9999999"}, "--limit: '9999999' (a whole number from 0 to 1000000)"},
      {{"logs", "demo", "--tail", "1.5"}, "--tail: '1.5' (a whole number from 0 to 2147483647)"},
      {{"submit", "a", "--halve-at", "1,x"}, "--halve-at: 'x' (a whole number of at least 1)"},
      {{"submit", "a", "--canary", "few"}, "--canary: 'few' (a whole number of at least 1)"},
      {{"dump-stack", "demo", "--saved", "0"}, "--saved: '0' (a whole number of at least 1)"},
      {{"list", "--output", "xml"}, "--output: 'xml' (must be table, wide, json, yaml or name)"},
      {{"needle", "./out", "--task", "word"},
       "--task: 'word' (must be key, keys, values, trace or count)"},
      {{"completion", "tcsh"}, "SHELL: 'tcsh' (must be bash, zsh or fish)"}};
  for (const auto& [words, why] : wrong) {
    const Ran ran = RunAlone(words);
    EXPECT_EQ(ran.code, ExitCode::kUsage) << why;
    EXPECT_THAT(ran.err, AllOf(StartsWith("nsactl: " + why),
                               EndsWith("; see `nsactl " + words[0] + " --help`\n")));
  }
}

TEST_F(CliTest, AnErrorNamesTheFlagAsItWasTyped) {
  const std::string svg = "(a name that ends in .svg)";
  EXPECT_THAT(RunAlone({"plot", "demo", "-o", "x"}).err, StartsWith("nsactl: -o: x " + svg));
  EXPECT_THAT(RunAlone({"plot", "demo", "-ox"}).err, StartsWith("nsactl: -o: x " + svg));
  EXPECT_THAT(RunAlone({"plot", "demo", "--file=x"}).err, StartsWith("nsactl: --file: x " + svg));
  EXPECT_THAT(RunAlone({"plot", "demo", "-o"}).err,
              StartsWith("nsactl: -o: none (a value is needed); see"));
  EXPECT_THAT(RunAlone({"list", "-o", "xml"}).err, StartsWith("nsactl: -o: 'xml'"));
  EXPECT_THAT(RunAlone({"serve", "demo", "--output", "json"}).err,
              StartsWith("nsactl: --output: json or yaml"));
  EXPECT_THAT(RunAlone({"submit", "a", "-w", "--sweep", "train.lr=1,2"}).err,
              StartsWith("nsactl: -w, --canary and --request-id are about one job"));
  // There -o is the file, and the format comes from the environment.
  setenv("NSACTL_OUTPUT", "xml", 1);
  EXPECT_THAT(RunAlone({"plot", "demo", "-o", "x.svg"}).err, StartsWith("nsactl: --output: 'xml'"));
  unsetenv("NSACTL_OUTPUT");
}

TEST_F(CliTest, AFileThatCannotBeReadIsNamedBeforeAWorkerStarts) {
  const std::string folder = dir_.path().string();
  const std::string none = folder + "/none.txt";
  const std::string why = " (No such file or directory); name a file that you can read\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"eval", "./out", "--data", none}, "--data: " + none + why},
      {{"eval", "./out", "--data", folder},
       "--data: " + folder + " (a folder); name a file that you can read\n"},
      {{"generate", "./out", "--file", none}, "--file: " + none + why},
      {{"needle", "./out", "--filler", none}, "--filler: " + none + why},
      {{"data", "needle", "--out", folder + "/n.jsonl", "--filler", none},
       "--filler: " + none + why},
      {{"data", "inspect", none}, "WHAT: " + none + why},
      {{"export", "./out", folder + "/model", "--tokenizer", none},
       "--tokenizer: " + none +
           " (No such file or directory); name a folder or file that you can read\n"},
      {{"needle", "./out", "--csv", none + "/n.csv"},
       "--csv: " + none + "/n.csv (No such file or directory); name a file that you can write\n"},
      {{"data", "needle", "--out", folder},
       "--out: " + folder + " (a folder); name a file that you can write\n"}};
  for (const auto& [words, message] : wrong) {
    const Ran ran = RunAlone(words);
    EXPECT_EQ(ran.code, ExitCode::kUsage) << message;
    EXPECT_EQ(ran.err, "nsactl: " + message);
  }
}

TEST_F(CliTest, TheNumbersOfDrawingHaveLimits) {
  for (const auto& [flag, value, limit] : {std::tuple("--temperature", "warm", "at least 0"),
                                           {"--temperature", "-1", "at least 0"},
                                           {"--temperature", "nan", "at least 0"},
                                           {"--top-p", "2", "above 0, at most 1"}}) {
    const Ran ran = RunAlone({"generate", "./out", flag, value});
    EXPECT_EQ(ran.code, ExitCode::kUsage);
    EXPECT_EQ(ran.err, absl::StrCat("nsactl: ", flag, ": '", value, "' (a number, ", limit,
                                    "); give one, e.g. 0.8\n"));
  }
}

TEST_F(CliTest, WrongFlagsAreOneLineThatNamesTheHelp) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"list", "--foo"},
                                             {"describe"},
                                             {"list", "-o", "xml"},
                                             {"list", "--timeout", "soon"},
                                             {"list", "--timeout", "-1"},
                                             {"list", "--state", "asleep"},
                                             {"stop", "demo", "--now", "--at-step", "5"},
                                             {"stop", "demo", "--at-step", "0"},
                                             {"logs", "demo", "--rank", "-2"},
                                             {"completion", "tcsh"},
                                             {"checkpoint"},
                                             {"context", "set", "new"}}) {
    const Ran ran = RunAlone(wrong);
    EXPECT_EQ(ran.code, ExitCode::kUsage) << wrong[0];
    EXPECT_THAT(ran.err, AllOf(StartsWith("nsactl: "), EndsWith("\n")));
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_EQ(ran.out, "");
  }
}

TEST_F(CliTest, EveryStatusOfTheCoordinatorHasItsExitCode) {
  using Code = grpc::StatusCode;
  const std::vector<std::pair<Code, ExitCode>> table = {
      {Code::INVALID_ARGUMENT, ExitCode::kUsage},
      {Code::NOT_FOUND, ExitCode::kNotFound},
      {Code::UNAUTHENTICATED, ExitCode::kAuth},
      {Code::PERMISSION_DENIED, ExitCode::kAuth},
      {Code::FAILED_PRECONDITION, ExitCode::kPrecondition},
      {Code::RESOURCE_EXHAUSTED, ExitCode::kPrecondition},
      {Code::ALREADY_EXISTS, ExitCode::kPrecondition},
      {Code::DEADLINE_EXCEEDED, ExitCode::kTimeout},
      {Code::INTERNAL, ExitCode::kFailed}};
  for (const auto& [status, code] : table) {
    state().failures["ListJobs"] = {grpc::Status(status, "thing: 3 (at most 2); do that")};
    const Ran ran = Run({"list"});
    EXPECT_EQ(ran.code, code) << status;
    EXPECT_THAT(ran.err, StartsWith("nsactl: "));
    if (status != Code::DEADLINE_EXCEEDED) {
      EXPECT_EQ(ran.err, "nsactl: thing: 3 (at most 2); do that\n");
    }
  }
}

TEST_F(CliTest, AnUnreachableCoordinatorIsFourAndSaysHowToStartOne) {
  const Ran standard = RunAlone({"list"});
  EXPECT_EQ(standard.code, ExitCode::kUnreachable);
  EXPECT_THAT(standard.err, AllOf(HasSubstr("coordinator.sock cannot be reached"),
                                  HasSubstr("start one with `nsa-coordinator`")));
  const Ran refused = RunAlone({"--address", "127.0.0.1:1", "list"});
  EXPECT_EQ(refused.code, ExitCode::kUnreachable);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("127.0.0.1:1 cannot be reached"), HasSubstr("--address"),
                                 HasSubstr("nsa-coordinator")));
}

TEST_F(CliTest, ACoordinatorThatAnswersUnavailableWasReached) {
  // More than gRPC itself repeats.
  state().failures["ListJobs"] = std::vector<grpc::Status>(
      12, ToGrpc(absl::UnavailableError("the coordinator is shutting down; try again later")));
  const Ran ran = Run({"list"});
  EXPECT_EQ(ran.code, ExitCode::kUnreachable);
  EXPECT_EQ(ran.err, "nsactl: the coordinator is shutting down; try again later\n");
}

TEST_F(CliTest, ASlowCoordinatorIsATimeout) {
  state().delay = absl::Seconds(30);
  for (const char* timeout : {"0.1", "100ms"}) {
    const Ran ran = Run({"list", "--timeout", timeout});
    EXPECT_EQ(ran.code, ExitCode::kTimeout);
    EXPECT_THAT(ran.err, HasSubstr("did not answer in 100 ms (--timeout)"));
  }
  setenv("NSACTL_TIMEOUT", "50ms", 1);
  EXPECT_THAT(Run({"list"}).err, HasSubstr("in 50 ms (--timeout)"));
}

TEST_F(CliTest, ASilentCoordinatorIsATimeout) {
  const TempDir dir;
  const std::string path = dir / "silent.sock";
  const SilentServer server(path);
  const Ran ran = RunAlone({"--address", "unix:" + path, "--timeout", "6s", "list"});
  EXPECT_EQ(ran.code, ExitCode::kTimeout);
  EXPECT_THAT(ran.err, HasSubstr("did not answer in 6 s"));
}

TEST_F(CliTest, ATokenOpensTheDoorAndAMissingOneIsFive) {
  state().token = "secret";
  EXPECT_EQ(Run({"list"}).code, ExitCode::kAuth);
  setenv("NSACTL_TOKEN", "secret", 1);
  EXPECT_EQ(Run({"list"}).code, ExitCode::kOk);
}

TEST_F(CliTest, CtrlCDuringACallIs130AndSaysNothing) {
  state().delay = absl::Seconds(30);
  std::thread later([this] {
    absl::SleepFor(absl::Milliseconds(50));
    interrupt_.Raise();
  });
  const Ran ran = Run({"list"});
  later.join();
  EXPECT_EQ(ran.code, ExitCode::kInterrupted);
  EXPECT_EQ(ran.err, "");
}

TEST_F(CliTest, TheOutputFormatComesFromTheEnvironmentToo) {
  setenv("NSACTL_OUTPUT", "json", 1);
  EXPECT_THAT(Run({"list"}).out, StartsWith("{"));
  EXPECT_THAT(Run({"list", "-o", "yaml"}).out, StartsWith("jobs: []"));
}

TEST_F(CliTest, ContextsAreMadeUsedAndShown) {
  const std::string lab = "lab:50951";
  EXPECT_EQ(RunAlone({"context", "set", "lab", "--address", lab}).code, ExitCode::kOk);
  EXPECT_EQ(RunAlone({"context", "use", "lab"}).code, ExitCode::kOk);
  EXPECT_THAT(RunAlone({"context", "show"}).out,
              AllOf(HasSubstr("address  lab:50951"), HasSubstr("from     context lab")));
  EXPECT_EQ(RunAlone({"context", "list"}).out,
            "CURRENT  NAME  ADDRESS    TLS  TOKEN FILE\n"
            "*        lab   lab:50951  -    -\n");
  EXPECT_EQ(RunAlone({"context", "list", "-o", "name"}).out, "lab\n");
  EXPECT_EQ(RunAlone({"context", "use", "moon"}).code, ExitCode::kNotFound);
  const Ran nameless = RunAlone({"context", "set", "", "--address", lab});
  EXPECT_EQ(nameless.code, ExitCode::kUsage);
  EXPECT_THAT(nameless.err, HasSubstr("NAME: empty"));
  EXPECT_EQ(RunAlone({"context", "list", "-o", "name"}).out, "lab\n");
  EXPECT_EQ(RunAlone({"context", "use", "none"}).code, ExitCode::kOk);
  EXPECT_THAT(RunAlone({"context", "show"}).out, HasSubstr("from     default"));
}

TEST_F(CliTest, ADeletedContextIsGoneAndNoLongerInUse) {
  for (const char* name : {"lab", "home"}) {
    RunAlone({"context", "set", name, "--address", std::string(name) + ":50951"});
  }
  RunAlone({"context", "use", "lab"});
  EXPECT_EQ(RunAlone({"context", "delete", "home"}).code, ExitCode::kOk);
  EXPECT_EQ(RunAlone({"context", "list", "-o", "name"}).out, "lab\n");
  EXPECT_THAT(RunAlone({"context", "show"}).out, HasSubstr("from     context lab"));
  const Ran ran = RunAlone({"context", "delete", "lab"});
  EXPECT_EQ(ran.code, ExitCode::kOk);
  EXPECT_THAT(ran.err, HasSubstr("this machine's coordinator"));
  EXPECT_THAT(RunAlone({"context", "show"}).out, HasSubstr("from     default"));
  EXPECT_EQ(RunAlone({"context", "delete", "lab"}).code, ExitCode::kNotFound);
}

// A server with the certificate `name` that wants its clients to have one of the authority `ca`.
std::unique_ptr<grpc::Server> StartTls(const std::string& folder, const std::string& name,
                                       grpc::Service* service, int* port) {
  const auto read = [&](const std::string& file) {
    std::stringstream text;
    text << std::ifstream(folder + "/" + file).rdbuf();
    return text.str();
  };
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = read("ca.crt");
  options.pem_key_cert_pairs = {{read(name + ".key"), read(name + ".crt")}};
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), port);
  builder.RegisterService(service);
  return builder.BuildAndStart();
}

// gRPC 1.51 reports UNAVAILABLE in every case, and only "Socket closed" where the server refused
// the client.
TEST_F(CliTest, ATlsConnectionThatFailsSaysWhatMayBeWrong) {
  const std::string dir = dir_.path().string();
  ASSERT_TRUE(MakeCertificates(dir));
  FakeCoordinatorService service;
  int port = 0;
  const auto server = StartTls(dir, "server", &service, &port);
  ASSERT_NE(server, nullptr);
  const auto list = [&](const std::string& ca, const std::string& certificate,
                        const std::string& key, int to) {
    const auto set = [&](const char* name, const std::string& file) {
      file.empty() ? unsetenv(name) : setenv(name, (dir + "/" + file).c_str(), 1);
    };
    set("NSACTL_TLS_CA_FILE", ca);
    set("NSACTL_TLS_CERTIFICATE_FILE", certificate);
    set("NSACTL_TLS_PRIVATE_KEY_FILE", key);
    return RunAlone({"--address", "127.0.0.1:" + std::to_string(to), "list"});
  };
  const Ran good = list("ca.crt", "client.crt", "client.key", port);
  EXPECT_EQ(good.code, ExitCode::kOk) << good.err;
  for (const std::string who : {"", "stranger"}) {
    const Ran ran =
        list("ca.crt", who.empty() ? "" : who + ".crt", who.empty() ? "" : who + ".key", port);
    EXPECT_EQ(ran.code, ExitCode::kUnreachable);
    EXPECT_THAT(ran.err, AllOf(HasSubstr("client_ca_file"), HasSubstr("--certificate-file FILE")));
  }
  const Ran authority = list("other.crt", "client.crt", "client.key", port);
  EXPECT_EQ(authority.code, ExitCode::kAuth);
  EXPECT_THAT(authority.err, AllOf(HasSubstr("TLS handshake failed"), HasSubstr("--ca-file")));
  const Ran mismatch = list("ca.crt", "client.crt", "stranger.key", port);
  EXPECT_EQ(mismatch.code, ExitCode::kAuth);
  EXPECT_THAT(mismatch.err, HasSubstr("stranger.key is not the key of " + dir + "/client.crt"));
  chmod((dir + "/client.key").c_str(), 0644);
  const Ran open = list("ca.crt", "client.crt", "client.key", port);
  EXPECT_EQ(open.code, ExitCode::kAuth);
  EXPECT_THAT(open.err, HasSubstr("chmod 600 " + dir + "/client.key"));
  chmod((dir + "/client.key").c_str(), 0600);
  EXPECT_THAT(list("", "", "", port).err, HasSubstr("nsactl context --help"));

  int elsewhere_port = 0;
  const auto elsewhere = StartTls(dir, "elsewhere", &service, &elsewhere_port);
  ASSERT_NE(elsewhere, nullptr);
  const Ran name = list("ca.crt", "client.crt", "client.key", elsewhere_port);
  EXPECT_EQ(name.code, ExitCode::kAuth);
  EXPECT_THAT(name.err, HasSubstr("this name is not in the coordinator's certificate"));
  // A server that is gone is reported as unreachable, not as a failure of TLS.
  elsewhere->Shutdown();
  EXPECT_EQ(list("ca.crt", "client.crt", "client.key", elsewhere_port).code,
            ExitCode::kUnreachable);
  server->Shutdown();
}

TEST_F(CliTest, VersionNamesBothAndAMissingCoordinatorIsNoError) {
  EXPECT_THAT(Run({"version"}).out, AllOf(HasSubstr("nsactl "), HasSubstr("9.9.9 (abcdef)")));
  const Ran alone = RunAlone({"version", "--timeout", "1"});
  EXPECT_EQ(alone.code, ExitCode::kOk);
  EXPECT_THAT(alone.out, HasSubstr("not reached"));
  EXPECT_THAT(RunAlone({"version", "--client"}).out, Not(HasSubstr("coordinator")));
  EXPECT_THAT(RunAlone({"--version"}).out, StartsWith("nsactl "));
}

}  // namespace
}  // namespace nsa::client

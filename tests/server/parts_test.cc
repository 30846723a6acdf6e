// Tests of small parts: auth, path guard, dump broker, change hub, fleet, self probe, local agent.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <regex>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/rpc/rpc.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"
#include "google/protobuf/message.h"
#include "server/act/dump_broker.h"
#include "server/act/local_agent.h"
#include "server/act/path_guard.h"
#include "server/act/request_error.h"
#include "server/rpc/auth.h"
#include "server/rpc/errors.h"
#include "server/rpc/self_probe.h"
#include "server/store/fleet.h"
#include "server/watch/change_hub.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

TEST(Auth, RefusesTokenFilesThatOthersCanReadAndShortTokens) {
  TempDir folder;
  const std::string path = (folder / "token").string();
  std::ofstream(path) << "0123456789abcdef\n";
  chmod(path.c_str(), 0644);
  EXPECT_THAT(Auth::FromFile(path).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chmod 600")));
  chmod(path.c_str(), 0600);
  EXPECT_OK(Auth::FromFile(path).status());
  std::ofstream(path) << "short\n";
  EXPECT_THAT(Auth::FromFile(path).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Auth::FromFile(folder / "none").status(), StatusIs(absl::StatusCode::kNotFound));
}

TEST(Auth, WithoutATokenNoTcpCallerIsLetIn) {
  const Auth auth = Auth::SocketOnly();
  EXPECT_OK(auth.Check("unix:", ""));
  for (const char* header : {"", "Bearer ", "Bearer x"}) {
    EXPECT_THAT(auth.Check("ipv4:127.0.0.1:5", header),
                StatusIs(absl::StatusCode::kUnauthenticated))
        << header;
  }
}

TEST(Auth, MakesATokenFileOnceAndNeverReplacesIt) {
  TempDir folder;
  const std::filesystem::path path = folder / "token";
  const auto made = MakeTokenFile(path);
  ASSERT_OK(made);
  EXPECT_TRUE(*made);
  EXPECT_OK(Auth::FromFile(path).status());
  const std::string text = *ReadWholeFile(path);
  EXPECT_EQ(text.size(), 65u) << "64 digits and a newline";
  EXPECT_FALSE(*MakeTokenFile(path));
  EXPECT_EQ(*ReadWholeFile(path), text);
  EXPECT_TRUE(*MakeTokenFile(folder / "another"));
  EXPECT_NE(*ReadWholeFile(folder / "another"), text);
  std::filesystem::create_symlink(folder / "nowhere", folder / "link");
  EXPECT_FALSE(*MakeTokenFile(folder / "link"));
  EXPECT_FALSE(std::filesystem::exists(folder / "nowhere"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 3)
      << "no drafts are left";
}

TEST(Auth, DoesNotSayTheTokenInItsErrors) {
  TempDir folder;
  const std::string path = (folder / "token").string();
  std::ofstream(path) << "canary-canary-canary\n";
  chmod(path.c_str(), 0600);
  const auto auth = Auth::FromFile(path);
  const absl::Status refused = auth->Check("ipv4:127.0.0.1:5", "Bearer guess");
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(refused.ToString(), ::testing::Not(HasSubstr("canary")));
  EXPECT_OK(auth->Check("ipv4:127.0.0.1:5", "Bearer canary-canary-canary"));
  EXPECT_OK(auth->Check("unix:", ""));
}

TEST(PathGuard, AllowsWhatLiesBeneathARoot) {
  TempDir folder;
  std::filesystem::create_directories(folder / "root/data");
  const PathGuard guard({folder / "root"});
  const auto check = [&](const std::string& path) {
    return guard.Check("train.out_dir", (folder.path() / path).string());
  };
  EXPECT_OK(check("root"));
  EXPECT_OK(check("root/data"));
  EXPECT_OK(check("root/not/yet/there"));
  for (const char* path : {"", "other", "rootless", "root2/data"}) {
    EXPECT_THAT(check(path),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("train.out_dir")))
        << path;
  }
}

TEST(PathGuard, RefusesTraversalLinksAndNonsense) {
  TempDir folder;
  std::filesystem::create_directories(folder / "root");
  std::filesystem::create_directories(folder / "secret");
  std::filesystem::create_symlink(folder / "secret", folder / "root/link");
  std::filesystem::create_symlink("../secret", folder / "root/relative");
  const PathGuard guard({folder / "root"});
  const std::string root = (folder / "root").string();
  for (const std::string& path :
       {absl::StrCat(root, "/../secret"), absl::StrCat(root, "/link"),
        absl::StrCat(root, "/link/new"), absl::StrCat(root, "/relative/new"),
        std::string("relative/path"), absl::StrCat(root, "/", std::string(5'000, 'x')),
        absl::StrCat(root, std::string("/a\0b", 4)), std::string()}) {
    EXPECT_THAT(guard.Check("f", path), StatusIs(absl::StatusCode::kInvalidArgument))
        << path.substr(0, 80);
  }
  const PathGuard open({"/"});
  EXPECT_OK(open.Check("f", absl::StrCat(root, "/link/new"))) << "no roots: links are followed";
  EXPECT_FALSE(open.Check("f", absl::StrCat(root, "/../x")).ok());
}

// Sets each string field in `part` to `text`, one at a time, and calls `visit` with the field's
// dotted name while it is set.
void ForEachTextField(google::protobuf::Message* part, const std::string& prefix,
                      const std::string& text,
                      const std::function<void(const std::string&)>& visit) {
  using google::protobuf::FieldDescriptor;
  const auto& r = *part->GetReflection();
  for (int i = 0; i < part->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = part->GetDescriptor()->field(i);
    const std::string name = prefix + field->name();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated()) {
      const bool there = r.HasField(*part, field);
      ForEachTextField(r.MutableMessage(part, field), name + ".", text, visit);
      if (!there) r.ClearField(part, field);
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) continue;
    const std::unique_ptr<google::protobuf::Message> before(part->New());
    before->CopyFrom(*part);
    if (field->is_repeated()) {
      r.AddString(part, field, text);
    } else {
      r.SetString(part, field, text);
    }
    visit(name);
    part->CopyFrom(*before);
  }
}

// Fields are found by their names, so one that is added later is tested too.
TEST(PathGuard, RefusesAPathOutsideInEveryFieldThatTakesOne) {
  TempDir folder;
  std::filesystem::create_directories(folder / "root");
  const PathGuard guard({folder / "root"});
  v1::JobSpec spec = TinyJob("demo", folder / "root/out");
  std::set<std::string> refused;
  const auto visit = [&](const std::string& name) {
    const bool takes_a_path =
        std::regex_search(name, std::regex("(path|paths|dir|file|files|folder|resume)$"));
    const absl::Status status = guard.CheckSpec(spec);
    EXPECT_EQ(takes_a_path, !status.ok()) << name << ": " << status;
    if (status.ok()) return;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name + ": ")));
    refused.insert(name);
  };
  ForEachTextField(&spec, "", "/etc", visit);
  EXPECT_THAT(refused,
              ::testing::UnorderedElementsAre("data.path", "data.val_path", "data.tokenizer_path",
                                              "train.out_dir", "restart.resume"));
}

TEST(PathGuard, LooksAtEveryPathOfASpec) {
  TempDir folder;
  std::filesystem::create_directories(folder / "root");
  const PathGuard guard({folder / "root"});
  v1::JobSpec spec = TinyJob("demo", folder / "root/out");
  spec.mutable_restart()->set_resume("auto");
  EXPECT_OK(guard.CheckSpec(spec));
  spec.mutable_data()->add_path("https://example.org/text.jsonl");
  EXPECT_OK(guard.CheckSpec(spec));
  v1::JobSpec bad = spec;
  bad.mutable_data()->add_path("/etc/passwd");
  EXPECT_THAT(guard.CheckSpec(bad),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.path")));
  bad = spec;
  bad.mutable_data()->add_val_path("/etc/passwd");
  EXPECT_FALSE(guard.CheckSpec(bad).ok());
  bad = spec;
  bad.mutable_restart()->set_resume("/etc/step-1");
  EXPECT_FALSE(guard.CheckSpec(bad).ok());
  bad = spec;
  bad.mutable_train()->set_out_dir("/etc");
  EXPECT_FALSE(guard.CheckSpec(bad).ok());
}

TEST(Fleet, ForgetsAMachineThatIsLongSilentAndHasNoJob) {
  FakeClock clock;
  Fleet fleet(clock, {.lost = absl::Minutes(5), .forgotten = absl::Hours(1)});
  const auto beat = [&](const char* name) {
    v1::HeartbeatRequest heartbeat;
    heartbeat.mutable_node()->set_name(name);
    EXPECT_OK(fleet.Observe(heartbeat));
  };
  v1::StoredJob job;
  job.add_placements()->set_node("placed");
  const std::vector<JobPtr> active = {std::make_shared<const v1::StoredJob>(job)};
  const auto names = [&] {
    fleet.ForgetLost(active);
    std::vector<std::string> all;
    for (const NodeView& node : fleet.Nodes()) all.push_back(node.info.name());
    return all;
  };
  for (const char* name : {"here", "placed", "renamed"}) beat(name);
  clock.Advance(absl::Hours(1) - absl::Seconds(1));
  beat("here");
  EXPECT_THAT(names(), ::testing::ElementsAre("here", "placed", "renamed"));
  clock.Advance(absl::Seconds(1));
  EXPECT_THAT(names(), ::testing::ElementsAre("here", "placed"));
  EXPECT_EQ(fleet.Find("placed")->state, RankView::Node::kLost);
  beat("renamed");
  EXPECT_THAT(names(), ::testing::ElementsAre("here", "placed", "renamed"));
}

TEST(Fleet, ForgetsNobodyWhoIsNotLost) {
  FakeClock clock;
  Fleet fleet(clock, {.lost = absl::Hours(3), .forgotten = absl::Hours(1)});
  v1::HeartbeatRequest heartbeat;
  heartbeat.mutable_node()->set_name("a");
  EXPECT_OK(fleet.Observe(heartbeat));
  clock.Advance(absl::Hours(2));
  fleet.ForgetLost({});
  EXPECT_EQ(fleet.Nodes().size(), 1u);
  clock.Advance(absl::Hours(1));
  fleet.ForgetLost({});
  EXPECT_TRUE(fleet.Nodes().empty());
}

TEST(DumpBroker, GivesWhatIsThereAndSaysWhatIsMissing) {
  FakeClock clock;
  DumpBroker broker(clock);
  v1::Job job;
  job.set_id("j");
  std::vector<v1::RankPlacement> ranks(2);
  ranks[0].set_node("a");
  ranks[1].set_node("b");
  ranks[1].set_rank(1);
  std::vector<v1::StackDump> dumps;
  broker.Request(job, ranks, absl::Seconds(5),
                 [&](std::vector<v1::StackDump> got) { dumps = std::move(got); });
  ASSERT_EQ(broker.Wanted("a").size(), 1u);
  v1::ReportDumpRequest report;
  report.set_dump_id(broker.Wanted("a")[0].dump_id());
  report.set_node("b");
  EXPECT_THAT(broker.Report(report), StatusIs(absl::StatusCode::kNotFound)) << "not its dump";
  report.set_node("a");
  report.set_stacks("#0\n");
  EXPECT_OK(broker.Report(report));
  EXPECT_TRUE(broker.Wanted("a").empty()) << "once is enough";
  clock.Advance(absl::Seconds(4));
  broker.Expire();
  EXPECT_TRUE(dumps.empty());
  clock.Advance(absl::Seconds(1));
  broker.Expire();
  ASSERT_EQ(dumps.size(), 2u);
  EXPECT_EQ(dumps[0].stacks(), "#0\n");
  EXPECT_EQ(dumps[0].error(), "");
  EXPECT_THAT(dumps[1].error(), HasSubstr("agent b did not answer within 5.0 s"));
  EXPECT_TRUE(broker.Wanted("b").empty());
}

TEST(ChangeHub, TellsThoseWhoFollowTheJobAndThoseWhoFollowAll) {
  ChangeHub hub;
  int of_a = 0;
  int of_all = 0;
  auto a = hub.Subscribe("a", [&] { ++of_a; });
  auto all = hub.Subscribe("", [&] { ++of_all; });
  hub.Publish("a");
  hub.Publish("b");
  a = ChangeHub::Subscription();
  hub.Publish("a");
  EXPECT_EQ(of_a, 1);
  EXPECT_EQ(of_all, 3);
}

TEST(Errors, KeepReasonAndViolationsUntilTheWire) {
  absl::Status status = WithReason(absl::InvalidArgumentError("bad"), Reason::kPathNotAllowed);
  status = WithViolation(std::move(status), "a.b", "wrong");
  status = WithViolation(std::move(status), "c", "too");
  const ErrorDetails details = DetailsOf(ToWire(status));
  EXPECT_EQ(details.reason, "PATH_NOT_ALLOWED");
  ASSERT_EQ(details.violations.size(), 2u);
  EXPECT_EQ(details.violations[1].field, "c");
}

TEST(SelfProbe, CallsForHelpOnceWhenNobodyAnswers) {
  std::promise<void> unreachable;
  int calls = 0;
  {
    SelfProbe probe({.address = "unix:/nonexistent/socket",
                     .every = absl::Milliseconds(5),
                     .patience = absl::Milliseconds(50),
                     .failures = 3,
                     .alive = [] { ADD_FAILURE(); },
                     .unreachable =
                         [&] {
                           ++calls;
                           unreachable.set_value();
                         }});
    EXPECT_EQ(unreachable.get_future().wait_for(std::chrono::seconds(10)),
              std::future_status::ready);
    absl::SleepFor(absl::Milliseconds(30));
  }
  EXPECT_EQ(calls, 1);
}

// Uses a program in place of nsa-agent that writes its identity to the lock file as nsa-agent does,
// and waits.
class LocalAgentTest : public ::testing::Test {
 protected:
  LocalAgentTest() {
    std::filesystem::create_directories(folder_ / "agent");
    const std::string program = (folder_ / "stand-in").string();
    std::ofstream(program) << "#!/bin/sh\n"
                           << "ticks=$(cut -d' ' -f22 /proc/$$/stat)\n"
                           << "boot=$(cat /proc/sys/kernel/random/boot_id)\n"
                           << "echo started >> starts\n"
                           << "printf '{\"pid\": %s, \"start_ticks\": %s, \"boot_id\": \"%s\"}' "
                           << "$$ $ticks $boot > agent.lock.new\n"
                           << "mv agent.lock.new agent.lock\n"
                           << "exec sleep 60\n";
    chmod(program.c_str(), 0700);
  }
  ~LocalAgentTest() override {
    const auto last = ReadIdentity(folder_ / "agent/agent.lock");
    if (last.ok()) SignalProcess(*last, SIGKILL).IgnoreError();
  }
  std::unique_ptr<LocalAgent> Start(absl::Duration backoff = absl::Milliseconds(500)) {
    return LocalAgent::Start({.program = folder_ / "stand-in",
                              .state_dir = folder_ / "agent",
                              .coordinator_address = "unix:/nowhere",
                              .first_backoff = backoff,
                              .longest_backoff = 4 * backoff},
                             clock_);
  }
  ProcessIdentity WaitFor(const LocalAgent& agent, pid_t other_than) {
    for (int i = 0; i < 1'000; ++i) {
      const auto process = agent.process();
      if (process.has_value() && process->pid != other_than) return *process;
      absl::SleepFor(absl::Milliseconds(10));
    }
    ADD_FAILURE() << "no agent came";
    return {};
  }
  int Starts() {
    std::ifstream file(folder_ / "agent/starts");
    int lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }

  TempDir folder_;
  RealClock clock_;
};

// Lowering the score of this process would need a privilege, so the test asks for a higher score.
TEST_F(LocalAgentTest, GivesTheAgentAnOomScoreOfItsOwn) {
  const auto agent = LocalAgent::Start({.program = folder_ / "stand-in",
                                        .state_dir = folder_ / "agent",
                                        .coordinator_address = "unix:/nowhere",
                                        .oom_score = 300},
                                       clock_);
  const ProcessIdentity process = WaitFor(*agent, 0);
  int score = 0;
  for (int i = 0; i < 6'000 && score < 300; ++i) {
    std::ifstream(absl::StrCat("/proc/", process.pid, "/oom_score_adj")) >> score;
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(score, 300);
}

TEST_F(LocalAgentTest, OutlivesTheCoordinatorAndIsFoundAgain) {
  ProcessIdentity first;
  {
    const auto agent = Start();
    first = WaitFor(*agent, 0);
  }
  EXPECT_TRUE(IsAlive(first));
  const auto again = Start();
  EXPECT_EQ(WaitFor(*again, 0).pid, first.pid);
  EXPECT_EQ(Starts(), 1);
}

TEST_F(LocalAgentTest, IsStartedAgainWhenItDies) {
  const auto agent = Start();
  const ProcessIdentity first = WaitFor(*agent, 0);
  ASSERT_OK(SignalProcess(first, SIGKILL));
  const ProcessIdentity second = WaitFor(*agent, first.pid);
  EXPECT_TRUE(IsAlive(second));
  EXPECT_EQ(Starts(), 2);
}

TEST_F(LocalAgentTest, ComesBackSoonHoweverOftenItDies) {
  EXPECT_LE(LocalAgent::Options{}.longest_backoff, absl::Seconds(2));
  const auto agent = Start(absl::Milliseconds(25));
  ProcessIdentity process = WaitFor(*agent, 0);
  absl::Duration longest;
  // Without a limit the last wait would be over six seconds.
  for (int death = 0; death < 9; ++death) {
    ASSERT_OK(SignalProcess(process, SIGKILL));
    const absl::Duration killed = clock_.Monotonic();
    process = WaitFor(*agent, process.pid);
    longest = std::max(longest, clock_.Monotonic() - killed);
  }
  EXPECT_LT(longest, absl::Seconds(4));
  EXPECT_EQ(Starts(), 10);
}

}  // namespace
}  // namespace nsa::server

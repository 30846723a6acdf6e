// Tests of small parts: auth, path guard, dump broker, change hub, fleet.
#include <signal.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <memory>
#include <regex>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/reason.h"
#include "common/rpc/rpc.h"
#include "common/rpc/secret.h"
#include "common/run/atomic_file.h"
#include "google/protobuf/message.h"
#include "server/act/path_guard.h"
#include "server/act/request_error.h"
#include "server/rpc/auth.h"
#include "server/rpc/errors.h"
#include "server/setup.h"
#include "server/store/fleet.h"
#include "server/watch/change_hub.h"
#include "server/watch/nodes_view.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

TEST(Auth, WithoutATokenNoTcpCallerIsLetIn) {
  const Auth auth = Auth::WithoutFile(nullptr);
  EXPECT_OK(auth.Check({.peer = "unix:"}, "GetJob"));
  for (const char* header : {"", "Bearer ", "Bearer x"}) {
    EXPECT_THAT(auth.Check({.peer = "ipv4:127.0.0.1:5", .header = header}, "GetJob"),
                StatusIs(absl::StatusCode::kUnauthenticated))
        << header;
  }
}

TEST(Auth, MakesATokenFileOnceAndNeverReplacesIt) {
  TempDir folder;
  const std::filesystem::path path = folder / "token";
  const auto made = MakeSecretFile("token_file", path);
  ASSERT_OK(made);
  EXPECT_TRUE(*made);
  EXPECT_OK(ReadSecretFile("token_file", path).status());
  const std::string text = *ReadWholeFile(path);
  EXPECT_EQ(text.size(), 65u) << "64 digits and a newline";
  EXPECT_FALSE(*MakeSecretFile("token_file", path));
  EXPECT_EQ(*ReadWholeFile(path), text);
  EXPECT_TRUE(*MakeSecretFile("token_file", folder / "another"));
  EXPECT_NE(*ReadWholeFile(folder / "another"), text);
  std::filesystem::create_symlink(folder / "nowhere", folder / "link");
  EXPECT_FALSE(*MakeSecretFile("token_file", folder / "link"));
  EXPECT_FALSE(std::filesystem::exists(folder / "nowhere"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 3)
      << "no drafts are left";
}

TEST(Auth, DoesNotSayTheTokenInItsErrors) {
  const Auth auth = Auth::WithToken(Sha256("canary-canary-canary"), nullptr);
  const std::string tcp = "ipv4:127.0.0.1:5";
  const absl::Status refused =
      auth.Check({.peer = tcp, .header = "Bearer guess"}, "GetJob").status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnauthenticated));
  EXPECT_THAT(refused.ToString(), ::testing::Not(HasSubstr("canary")));
  EXPECT_OK(auth.Check({.peer = tcp, .header = "Bearer canary-canary-canary"}, "GetJob"));
  EXPECT_OK(auth.Check({.peer = "unix:"}, "GetJob"));
}

TEST(Setup, AReloadKeepsTheStateFolder) {
  const Options running{.state_dir = "/var/lib/nsa"};
  EXPECT_OK(CheckReload(running, running));
  EXPECT_THAT(CheckReload({.state_dir = "/srv/nsa"}, running),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("state_dir: /srv/nsa (this coordinator runs in /var/lib/nsa)")));
}

TEST(Setup, AStateFolderWhosePathIsTooLongForASocketIsRefused) {
  EXPECT_THAT(CheckAddresses({.state_dir = "/" + std::string(100, 'x')}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too long for a socket")));
}

TEST(Permission, EveryMethodHasARowAndAMethodWithoutOneIsDenied) {
  const Caller person{.name = "olga", .role = v1::ROLE_OPERATOR};
  const Caller agent{.name = "node a", .role = v1::ROLE_AGENT, .node = "a"};
  const auto each = [](const google::protobuf::FileDescriptor* file, const Caller& caller) {
    for (int i = 0; i < file->service(0)->method_count(); ++i) {
      EXPECT_OK(MayCall(caller, file->service(0)->method(i)->name()));
    }
  };
  each(v1::SubmitJobRequest::descriptor()->file(), person);
  each(v1::HeartbeatRequest::descriptor()->file(), agent);
  EXPECT_THAT(MayCall(person, "Heartbeat"), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(MayCall(agent, "GetVersion"), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(MayCall(person, "NotYetInTheTable"), StatusIs(absl::StatusCode::kPermissionDenied));
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

TEST(PathGuard, TwoSpellingsOfAnOutDirAreOneFolder) {
  TempDir folder;
  const std::string root = std::filesystem::canonical(folder.path()).string();
  std::filesystem::create_directories(folder / "real/a");
  std::filesystem::create_symlink(folder / "real", folder / "link");
  const PathGuard guard({"/"});
  for (const char* spelling : {"/real/a/out", "/link/a/out", "/real//a/./out/", "//link/a//out"}) {
    const auto real = guard.RealOutDir(folder.path().string() + spelling);
    ASSERT_OK(real);
    EXPECT_EQ(*real, root + "/real/a/out") << spelling;
  }
}

TEST(PathGuard, AnOutDirStaysAwayFromTheStateFolderAndFromLinksToNothing) {
  TempDir folder;
  std::filesystem::create_directories(folder / "state");
  std::filesystem::create_directories(folder / "out");
  std::filesystem::create_symlink(folder / "state", folder / "to-state");
  std::filesystem::create_symlink(folder / "nowhere", folder / "dangling");
  const PathGuard guard({"/"}, folder / "state");
  const auto refused = [&](const std::string& inner) {
    const auto real = guard.RealOutDir(folder.path().string() + inner);
    return real.ok() ? "" : std::string(real.status().message());
  };
  EXPECT_EQ(refused("/out"), "");
  EXPECT_EQ(refused("/states"), "");
  for (const char* inner : {"/state", "/state/x", "/state//x/", "/to-state/x", ""}) {
    EXPECT_THAT(refused(inner), HasSubstr("state folder")) << inner;
  }
  EXPECT_THAT(refused("/dangling/x"), HasSubstr("a link to nothing"));
  EXPECT_THAT(refused("/dangling"), HasSubstr("make its target"));
  for (const char* inner : {"/~/x", "/$HOME/x", "/${HOME}"}) {
    EXPECT_THAT(refused(inner), HasSubstr("only a shell replaces")) << inner;
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
        std::regex_search(name, std::regex("(path|paths|dir|file|files|folder|resume|init)$"));
    const absl::Status status = guard.CheckSpec(spec);
    EXPECT_EQ(takes_a_path, !status.ok()) << name << ": " << status;
    if (status.ok()) return;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name + ": ")));
    refused.insert(name);
  };
  ForEachTextField(&spec, "", "/etc", visit);
  EXPECT_THAT(refused,
              ::testing::UnorderedElementsAre("data.path", "data.val_path", "data.tokenizer_path",
                                              "train.out_dir", "restart.resume", "restart.init"));
}

TEST(PathGuard, LooksAtEveryPathOfASpec) {
  TempDir folder;
  std::filesystem::create_directories(folder / "root");
  const PathGuard guard({folder / "root"}, {}, *UrlPolicy::Make(DefaultAllowedUrls()));
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

TEST(Fleet, AnIncarnationThatFallsSilentGivesWayToTheOneThatStillBeats) {
  FakeClock clock;
  Fleet fleet(clock, {.unknown = absl::Seconds(10)});
  const auto beat = [&](const char* incarnation) {
    v1::HeartbeatRequest heartbeat;
    heartbeat.mutable_node()->set_name("a");
    heartbeat.set_incarnation(incarnation);
    return fleet.Observe(heartbeat);
  };
  EXPECT_OK(beat("older"));
  EXPECT_OK(beat("newer"));
  clock.Advance(absl::Seconds(9));
  EXPECT_THAT(beat("older"), StatusIs(absl::StatusCode::kFailedPrecondition));
  clock.Advance(absl::Seconds(1));
  EXPECT_OK(beat("older"));
  EXPECT_THAT(beat("newer"), StatusIs(absl::StatusCode::kFailedPrecondition))
      << "now the other one is the agent of this machine";
}

TEST(Fleet, KnownMachinesAreAbsentUntilTheyAreHeardForgottenOrRevoked) {
  FakeClock clock;
  Fleet before(clock, {});
  const auto beat = [&](Fleet* fleet, const char* name, const char* allocation = "") {
    v1::HeartbeatRequest heartbeat;
    heartbeat.mutable_node()->set_name(name);
    heartbeat.mutable_node()->set_allocation(allocation);
    heartbeat.mutable_node()->set_cpu_slots(2);
    heartbeat.set_boot_id("boot-1");
    EXPECT_OK(fleet->Observe(heartbeat));
  };
  for (const char* name : {"heard", "placed", "gone", "revoked"}) beat(&before, name);
  beat(&before, "allocated", "a1");
  const KnownNodes known = before.Known();
  EXPECT_EQ(known.size(), 4u) << "not those of allocations";
  EXPECT_EQ(known.at("heard").boot_id(), "boot-1");

  Fleet fleet(clock, {.unknown = absl::Seconds(10), .forgotten = absl::Hours(1)});
  fleet.Remember(known);
  beat(&fleet, "heard");
  v1::StoredJob job;
  job.add_placements()->set_node("placed");
  const auto states = [&] {
    fleet.ForgetLost({std::make_shared<const v1::StoredJob>(job)});
    const auto nodes = NodesView(fleet.Nodes(), {}, {}, {});
    std::string text;
    for (const v1::Node& node : nodes->nodes()) {
      absl::StrAppend(&text, node.info().name(), " ", node.state(), "; ");
    }
    return text;
  };
  EXPECT_EQ(states(), "gone ABSENT; heard READY; placed ABSENT; revoked ABSENT; ");
  const RankView rank = fleet.Ranks(job, fleet.started()).at(0);
  EXPECT_EQ(rank.node, RankView::Node::kUnknown);
  EXPECT_FALSE(rank.heard_since_told);
  fleet.NoteRevoked("revoked");
  clock.Advance(absl::Seconds(10));
  beat(&fleet, "heard");
  EXPECT_EQ(states(), "gone ABSENT; heard READY; placed ABSENT; ");
  clock.Advance(absl::Hours(1) - absl::Seconds(10));
  beat(&fleet, "heard");
  EXPECT_EQ(states(), "heard READY; placed ABSENT; ");
  EXPECT_EQ(fleet.Find("placed")->state, RankView::Node::kLost);
}

TEST(Fleet, ACopiedMachineDoesNotTakeTheOriginalsPlace) {
  FakeClock clock;
  Fleet fleet(clock, {.unknown = absl::Seconds(10)});
  const auto beat = [&](const char* incarnation, const char* boot_id) {
    v1::HeartbeatRequest heartbeat;
    heartbeat.mutable_node()->set_name("a");
    heartbeat.set_incarnation(incarnation);
    heartbeat.set_boot_id(boot_id);
    return fleet.Observe(heartbeat);
  };
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("remove node.secret from its state folder"));
  EXPECT_OK(beat("original", "boot-1"));
  EXPECT_THAT(beat("copy", "boot-2"), refused);
  EXPECT_TRUE(fleet.NoteRefusal("a", "copy"));
  EXPECT_FALSE(fleet.NoteRefusal("a", "copy")) << "logged once";
  EXPECT_OK(beat("original", "boot-1"));
  EXPECT_OK(beat("restarted agent", "boot-1")) << "of the same machine";
  clock.Advance(absl::Seconds(9));
  EXPECT_THAT(beat("copy", "boot-2"), refused);
  clock.Advance(absl::Seconds(1));
  EXPECT_OK(beat("rebooted", "boot-3")) << "a machine that was started again was silent before";
  EXPECT_THAT(beat("restarted agent", "boot-1"), refused);
  EXPECT_OK(beat("older version", "")) << "it does not say so";
}

TEST(Fleet, TellsTheGpusOfAJobOnAllItsMachines) {
  FakeClock clock;
  Fleet fleet(clock, {});
  v1::StoredJob job;
  for (const auto& [node, device] :
       {std::pair("a", "GPU-2"), std::pair("b", "GPU-3"), std::pair("c", ""), std::pair("d", "")}) {
    job.add_placements()->set_node(node);
    job.mutable_placements(job.placements_size() - 1)->set_cuda_device(device);
  }
  for (const auto& [node, uuids] : std::map<std::string, std::vector<std::string>>{
           {"a", {"GPU-1", "GPU-2"}}, {"b", {"GPU-3"}}, {"c", {""}}, {"e", {"GPU-2"}}}) {
    v1::HeartbeatRequest heartbeat;
    heartbeat.mutable_node()->set_name(node);
    for (const std::string& uuid : uuids) {
      heartbeat.mutable_node()->add_gpus()->set_uuid(uuid);
    }
    ASSERT_OK(fleet.Observe(heartbeat));
  }
  std::vector<std::string> found;
  for (const v1::GpuInfo& gpu : fleet.GpusOf(job)) found.push_back(gpu.uuid());
  EXPECT_THAT(found, ::testing::ElementsAre("GPU-2", "GPU-3"));
}

// An agent that has just started does not know its GPUs yet: a launch must wait for them.
TEST(Fleet, GpusThatAreNotKnownYetAreNotMeasured) {
  FakeClock clock;
  Fleet fleet(clock, {});
  v1::StoredJob job;
  job.add_placements()->set_node("a");
  job.mutable_placements(0)->set_cuda_device("GPU-1");
  const absl::Duration told = clock.Monotonic();
  v1::HeartbeatRequest heartbeat;
  heartbeat.mutable_node()->set_name("a");
  for (const double age : {-1.0, 0.0}) {
    clock.Advance(absl::Seconds(1));
    heartbeat.mutable_node()->set_gpus_age_seconds(age);
    ASSERT_OK(fleet.Observe(heartbeat));
    EXPECT_EQ(fleet.Ranks(job, told).at(0).measured_since_told, age >= 0);
  }
}

TEST(Fleet, KnowsHowFarTheClocksOfItsMachinesAreOff) {
  FakeClock clock;
  Fleet fleet(clock, {});
  const auto beat = [&](const char* name, absl::Duration ahead, absl::Duration way,
                        const char* incarnation = "1") {
    v1::HeartbeatRequest heartbeat;
    heartbeat.mutable_node()->set_name(name);
    heartbeat.mutable_node()->set_unix_nanos(absl::ToUnixNanos(clock.Wall() + ahead));
    heartbeat.set_incarnation(incarnation);
    clock.Advance(way);
    EXPECT_OK(fleet.Observe(heartbeat));
  };
  const auto offset = [&](const char* name) {
    return absl::ToDoubleSeconds(fleet.Find(name)->clock_offset.value());
  };
  beat("a", absl::Seconds(3), absl::Milliseconds(1));
  beat("b", absl::ZeroDuration(), absl::Seconds(2));
  EXPECT_NEAR(offset("a"), 2.999, 1e-6);
  EXPECT_NEAR(offset("b"), -2, 1e-6);
  beat("b", absl::ZeroDuration(), absl::Milliseconds(1));
  EXPECT_NEAR(offset("b"), -0.001, 1e-6) << "the slow heartbeat does not count";

  const auto difference = [&] {
    const std::vector<NodeView> nodes = fleet.Nodes();
    return absl::ToDoubleSeconds(*nodes.at(0).clock_offset - *nodes.at(1).clock_offset);
  };
  EXPECT_NEAR(difference(), 3, 1e-6);
  clock.JumpWall(absl::Hours(-1));
  EXPECT_NEAR(offset("b"), 3600, 0.01) << "of the coordinator's clock, which was set back";
  EXPECT_NEAR(difference(), 3, 1e-6) << "convicts nobody";
  beat("b", absl::Hours(1), absl::Milliseconds(1));
  EXPECT_NEAR(difference(), 3, 1e-6) << "also not half of the machines";
  beat("a", absl::Hours(1), absl::Milliseconds(1), "2");
  EXPECT_NEAR(difference(), 0, 1e-6) << "a new start of the agent begins anew";

  v1::HeartbeatRequest older;
  older.mutable_node()->set_name("c");
  EXPECT_OK(fleet.Observe(older));
  EXPECT_FALSE(fleet.Find("c")->clock_offset.has_value());
}

TEST(Fleet, TakesNoMoreMachinesThanItsLimit) {
  FakeClock clock;
  Fleet fleet(clock, {});
  v1::HeartbeatRequest heartbeat;
  for (size_t i = 0; i < limits::kNodes; ++i) {
    heartbeat.mutable_node()->set_name(absl::StrCat("n", i));
    ASSERT_OK(fleet.Observe(heartbeat));
  }
  EXPECT_OK(fleet.Observe(heartbeat));
  heartbeat.mutable_node()->set_name("one-more");
  EXPECT_THAT(fleet.Observe(heartbeat),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1024")));
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

TEST(ChangeHub, TellsThoseWhoFollowTheJobAndThoseWhoFollowAll) {
  ChangeHub hub;
  int of_a = 0;
  int of_all = 0;
  std::string last = "none";
  auto a = hub.Subscribe("a", [&](const std::string&) { ++of_a; });
  auto all = hub.Subscribe("", [&](const std::string& id) { ++of_all, last = id; });
  hub.Publish("a");
  hub.Publish("b");
  a = ChangeHub::Subscription();
  hub.Publish("a");
  EXPECT_EQ(of_a, 1);
  EXPECT_EQ(of_all, 3);
  EXPECT_EQ(last, "a");
  hub.PublishAll();
  EXPECT_EQ(last, "");
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

}  // namespace
}  // namespace nsa::server

// Ranks that run as the Unix user of their job, with fake workers. Needs root and the users nobody
// and games.
#include <pwd.h>
#include <sys/stat.h>

#include "tests/testing/agent_fixture.h"
#include "tests/worker/agent/user/real_cgroup.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

constexpr char kAda[] = "nobody";
constexpr char kBob[] = "games";
constexpr char kSecret[] = "what only root may read";

class UnixUsersTest : public AgentFixture {
 protected:
  void SetUp() override {
    if (geteuid() != 0 || getpwnam(kAda) == nullptr || getpwnam(kBob) == nullptr) {
      GTEST_SKIP() << "needs root and the users " << kAda << " and " << kBob;
    }
    for (fs::path path = worker_program_; path != path.root_path(); path = path.parent_path()) {
      if ((fs::status(path).permissions() & fs::perms::others_exec) != fs::perms::none) continue;
      GTEST_SKIP() << path << " is closed to other users: they cannot run " << worker_program_;
    }
    ada_ = *getpwnam(kAda);
    fs::permissions(folder_.path(), fs::perms(0711));
    std::ofstream(folder_ / "agent.yaml", std::ios::app) << "unix_users: true\n";
    std::ofstream(folder_ / "secret") << kSecret;
    chmod((folder_ / "secret").c_str(), 0600);
  }

  // With an out_dir that the user may write.
  v1::WorkerAssignment As(const char* user, const Key& key, int64_t steps,
                          const std::map<std::string, std::string>& labels = {}) {
    v1::WorkerAssignment out = Assignment(key, steps, labels);
    out.set_unix_user(user);
    const passwd entry = *getpwnam(user);
    const std::string& out_dir = out.spec().train().out_dir();
    fs::create_directories(out_dir);
    EXPECT_EQ(chown(out_dir.c_str(), entry.pw_uid, entry.pw_gid), 0);
    return out;
  }

  // "65534 65534 65534 65534" for the line "Uid:".
  static std::string StatusLine(pid_t pid, const std::string& name) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(name + ":")) {
        line = line.substr(name.size() + 1);
        std::replace(line.begin(), line.end(), '\t', ' ');
        line.erase(0, line.find_first_not_of(' '));
        line.erase(line.find_last_not_of(' ') + 1);
        return line;
      }
    }
    return "";
  }

  static mode_t ModeOf(const fs::path& path) {
    struct stat info {};
    EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
    return info.st_mode & 07777;
  }
  static uid_t OwnerOf(const fs::path& path) {
    struct stat info {};
    EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
    return info.st_uid;
  }

  passwd ada_ = {};
};

TEST_F(UnixUsersTest, ARankIsItsUserAndNothingElse) {
  const fs::path cache = folder_ / "cache";
  std::ofstream(folder_ / "agent.yaml", std::ios::app)
      << "data_cache_dir: " << cache.string() << "\n";
  StartAgent({{"HOME", "/of-the-agent"},
              {"HF_TOKEN", "of-the-agent"},
              {"AWS_SECRET_ACCESS_KEY", "of-the-agent"},
              {"AWS_SHARED_CREDENTIALS_FILE", "/of-the-agent/credentials"},
              {"https_proxy", "http://of-the-agent:secret@proxy"},
              {"XDG_CACHE_HOME", "/of-the-agent/.cache"}});
  v1::WorkerAssignment assignment = As(kAda, kJob, 1000000, {{"print_environment", "1"}});
  assignment.mutable_spec()->mutable_train()->set_save_every(5);
  const ProcessIdentity worker = RunWorker(assignment);
  const std::string uid = absl::StrCat(ada_.pw_uid), gid = absl::StrCat(ada_.pw_gid);
  EXPECT_EQ(StatusLine(worker.pid, "Uid"), absl::StrCat(uid, " ", uid, " ", uid, " ", uid));
  EXPECT_EQ(StatusLine(worker.pid, "Gid"), absl::StrCat(gid, " ", gid, " ", gid, " ", gid));
  EXPECT_EQ(StatusLine(worker.pid, "Groups"), gid);
  EXPECT_EQ(StatusLine(worker.pid, "NoNewPrivs"), "1");
  EXPECT_EQ(StatusLine(worker.pid, "Umask"), "0022");
  for (const char* powers : {"CapPrm", "CapEff", "CapAmb"}) {
    EXPECT_EQ(StatusLine(worker.pid, powers), "0000000000000000") << powers;
  }
  ASSERT_TRUE(coordinator_.WaitForStep(kJob, 20));
  EXPECT_TRUE(coordinator_.Node().unix_users());
  ASSERT_TRUE(
      Eventually([&] { return coordinator_.Log(kJob).find("USER=") != std::string::npos; }));
  EXPECT_THAT(coordinator_.Log(kJob),
              AllOf(HasSubstr(absl::StrCat("USER=", kAda, "\n")),
                    HasSubstr(absl::StrCat("LOGNAME=", kAda, "\n")),
                    HasSubstr(absl::StrCat("HOME=", ada_.pw_dir, "\n")),
                    HasSubstr(absl::StrCat("NSA_DATA_CACHE_DIR=", (cache / kAda).string(), "\n")),
                    Not(HasSubstr("of-the-agent")), Not(HasSubstr("XDG_CACHE_HOME"))));

  const RunDir dir = Dir(kJob);
  for (const fs::path& closed : {dir.path, dir.rendezvous(), cache / kAda}) {
    EXPECT_EQ(OwnerOf(closed), ada_.pw_uid) << closed;
    EXPECT_EQ(ModeOf(closed), 0700u) << closed;
  }
  const fs::path gang = dir.path.parent_path();
  for (const fs::path& open : {gang, gang.parent_path(), fs::path(StateDir())}) {
    EXPECT_EQ(OwnerOf(open), 0u) << open;
    EXPECT_EQ(ModeOf(open), 0711u) << open;
  }
  EXPECT_EQ(ModeOf(gang / "agent-0000"), 0700u);
  EXPECT_EQ(OwnerOf(gang / "agent-0000" / "identity.json"), 0u);
  EXPECT_FALSE(fs::exists(dir.path / "identity.json"));
  EXPECT_EQ(ModeOf(fs::path(StateDir()) / "node.secret"), 0600u);
  ASSERT_TRUE(Eventually([&] {
    return fs::exists(fs::path(assignment.spec().train().out_dir()) / "checkpoints/step-00000005");
  }));
  for (const auto& entry : fs::recursive_directory_iterator(assignment.spec().train().out_dir())) {
    EXPECT_EQ(OwnerOf(entry.path()), ada_.pw_uid) << entry.path();
  }
  coordinator_.SetStop(kJob, v1::STOP_MODE_GRACEFUL);
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_EQ(coordinator_.Observation(kJob).exit_code(), 0);
  coordinator_.Unwant(kJob);
  EXPECT_TRUE(Eventually([&] { return fs::is_empty(fs::path(StateDir()) / "jobs"); }));
}

TEST_F(UnixUsersTest, WhoMustNotRunJobsIsRefusedForGood) {
  StartAgent();
  const std::pair<const char*, const char*> refused[] = {
      {"", "nsactl token create --unix-user"},
      {"no-such-user-here", "is not on this machine"},
      {"root", "never root"},
      {"0", "never root"}};
  for (const auto& [user, why] : refused) {
    const Key key = {absl::StrCat("job-", user, "x"), 1, 0};
    v1::WorkerAssignment assignment = Assignment(key, 5);
    assignment.set_unix_user(user);
    coordinator_.Want(assignment);
    ASSERT_TRUE(WaitForEnd(key)) << user;
    const v1::WorkerObservation end = coordinator_.Observation(key);
    EXPECT_EQ(end.pid(), 0) << user;
    EXPECT_EQ(end.exit_code(), 3) << user;
    EXPECT_THAT(end.start_error(), HasSubstr(why)) << user;
    EXPECT_FALSE(fs::exists(Dir(key).path)) << user;
  }
}

TEST_F(UnixUsersTest, AProgramThatTheUserMayNotRunIsNamed) {
  fs::create_directory(folder_ / "closed");
  chmod((folder_ / "closed").c_str(), 0700);
  fs::copy_file(worker_program_, folder_ / "closed/worker");
  worker_program_ = (folder_ / "closed/worker").string();
  StartAgent();
  coordinator_.Want(As(kAda, kJob, 5));
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_THAT(coordinator_.Observation(kJob).start_error(),
              AllOf(HasSubstr("closed/worker"), HasSubstr("Permission denied")));
}

TEST_F(UnixUsersTest, AStateFolderThatUsersCannotReachStopsTheStart) {
  fs::permissions(folder_.path(), fs::perms(0700));
  StartAgent();
  EXPECT_NE(AwaitAgent().code, 0);
  EXPECT_THAT(AgentLog(), AllOf(HasSubstr("closed to other users"), HasSubstr("chmod o+x")));
}

// Everything that the user could do in the run folder to a more powerful reader.
TEST_F(UnixUsersTest, LinksInARunFolderGiveNothingOfOthers) {
  StartAgent();
  const Key of_bob = {"job-b", 1, 0};
  const ProcessIdentity bob = RunWorker(As(kBob, of_bob, 1000000));
  const ProcessIdentity worker =
      RunWorker(As(kAda, kJob, 1000000, {{"log_bytes", "10"}, {"step_ms", "20"}}));
  ASSERT_TRUE(coordinator_.WaitForStep(kJob, 5));
  const RunDir dir = Dir(kJob);
  for (const fs::path& path : {dir.log(), dir.status(), dir.journal()}) {
    fs::remove(path);
    fs::create_symlink(folder_ / "secret", path);
  }
  fs::remove(dir.control());
  fs::create_symlink(Dir(of_bob).control(), dir.control());
  fs::create_symlink(folder_ / "secret", dir.profile("p1"));
  // Notes that the agent would believe if they were its own: the process is Bob's.
  ASSERT_OK(WriteIdentity(dir.path / "identity.json", bob));
  std::ofstream(dir.path / "exit.json") << "{}";

  coordinator_.SetStop(kJob, v1::STOP_MODE_GRACEFUL);
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  fs::remove(dir.log());
  fs::create_hard_link(folder_ / "secret", dir.log());  // as where protected_hardlinks is off
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_TRUE(IsAlive(bob));
  EXPECT_FALSE(coordinator_.Records(of_bob).back().has_finished()) << "the stop went astray";
  KillAgent();
  StartAgent();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(coordinator_.Observation(kJob).pid(), worker.pid);
  coordinator_.SetStop(kJob, v1::STOP_MODE_NOW);
  EXPECT_TRUE(Eventually([&] { return !IsAlive(worker); }));
  EXPECT_TRUE(IsAlive(bob));
  ASSERT_TRUE(WaitForEnd(kJob));
  coordinator_.Unwant(kJob);
  EXPECT_TRUE(Eventually([&] { return !fs::exists(dir.path); }));
  EXPECT_THAT(coordinator_.Log(kJob), Not(HasSubstr(kSecret)));
  EXPECT_EQ(*ReadWholeFile(folder_ / "secret"), kSecret);
}

// A message with a text that is not UTF-8 would be refused whole, with what it says of other ranks.
TEST_F(UnixUsersTest, BytesThatAreNoTextSilenceNobody) {
  StartAgent();
  RunWorker(As(kAda, kJob, 1000000, {{"hold_at_step", "3"}}));
  ASSERT_TRUE(coordinator_.WaitForStep(kJob, 2));
  constexpr std::streamoff kKernel = 13 * 8;  // status_page.cc
  std::fstream page(Dir(kJob).status(), std::ios::in | std::ios::out | std::ios::binary);
  page.seekp(kKernel);
  page << "\xff\xfe";
  page.close();
  EXPECT_TRUE(coordinator_.WaitFor([&] {
    return coordinator_.ObservationLocked(kJob).place().find("\\xff\\xfe") != std::string::npos;
  })) << coordinator_.Observation(kJob).place();
  coordinator_.WantDump("d1", kJob);
  ASSERT_TRUE(coordinator_.WaitForDump("d1"));
  EXPECT_THAT(coordinator_.Dump("d1").status(), HasSubstr("\\xff\\xfe"));
}

TEST_F(UnixUsersTest, AFolderThatLeadsElsewhereGetsNoAddress) {
  std::ofstream(folder_ / "agent.yaml", std::ios::app) << "rank_address: 127.0.0.1\n";
  StartAgent();
  v1::WorkerAssignment assignment = As(kAda, kJob, 1000000);
  assignment.set_world_size(2);
  assignment.set_several_machines(true);
  RunWorker(assignment);
  const fs::path meeting = Dir(kJob).rendezvous() / "gen-000001";
  const fs::path elsewhere = folder_ / "elsewhere";
  fs::create_directory(elsewhere);
  fs::rename(meeting, meeting.string() + "-moved");
  fs::create_directory_symlink(elsewhere, meeting);
  assignment.set_next_rank_address("10.0.0.2 29501 0f0e0d0c0b0a09080706050403020100\n");
  coordinator_.Want(assignment);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_TRUE(fs::is_empty(elsewhere));
  fs::remove(meeting);
  fs::rename(meeting.string() + "-moved", meeting);
  ASSERT_TRUE(Eventually([&] { return fs::exists(meeting / "rank-0001.address"); }));
  EXPECT_EQ(OwnerOf(meeting / "rank-0001.address"), ada_.pw_uid);
}

TEST_F(UnixUsersTest, AWorkerIsAdoptedDumpedAndStopped) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(As(kAda, kJob, 1000000));
  KillAgent();
  EXPECT_TRUE(IsAlive(worker));
  StartAgent();
  const int64_t step = static_cast<int64_t>(coordinator_.Steps(kJob).size());
  ASSERT_TRUE(coordinator_.WaitForStep(kJob, step + 20));
  coordinator_.WantDump("d1", kJob);
  ASSERT_TRUE(coordinator_.WaitForDump("d1"));
  const v1::ReportDumpRequest dump = coordinator_.Dump("d1");
  EXPECT_THAT(dump.stacks(), HasSubstr("WaitForEver()")) << dump.error();
  EXPECT_EQ(dump.error(), "");
  EXPECT_THAT(dump.status(), HasSubstr("rank 0/1"));
  coordinator_.SetStop(kJob, v1::STOP_MODE_GRACEFUL);
  ASSERT_TRUE(WaitForEnd(kJob));
  const std::vector<int64_t> steps = coordinator_.Steps(kJob);
  EXPECT_EQ(steps, OneTo(static_cast<int64_t>(steps.size())));
  EXPECT_EQ(coordinator_.Records(kJob).back().finished().reason(), "STOPPED");
}

TEST_F(UnixUsersTest, NoProcessOfARankStaysBehind) {
  const RealCgroup real("users-test");
  if (!real.usable()) GTEST_SKIP() << "root cannot make cgroups of version 2 here";
  std::ofstream(folder_ / "agent.yaml", std::ios::app) << "worker_cgroup: " << real.path() << "\n";
  const std::string script = (folder_ / "worker.sh").string();
  std::ofstream(script) << "#!/bin/sh\nsetsid sleep 1000 &\nexec " << worker_program_
                        << " \"$@\"\n";
  chmod(script.c_str(), 0755);
  worker_program_ = script;
  StartAgent();
  const auto groups = [&] {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(real.path())) {
      if (entry.is_directory()) found.push_back(entry.path());
    }
    return found;
  };
  RunWorker(As(kAda, kJob, 1000000));
  ASSERT_EQ(groups().size(), 1u);
  EXPECT_THAT(groups()[0].filename().string(), HasSubstr("job-a-g1-r0"));
  const std::string processes = *ReadWholeFile(groups()[0] / "cgroup.procs");
  EXPECT_EQ(std::count(processes.begin(), processes.end(), '\n'), 2) << processes;
  coordinator_.SetStop(kJob, v1::STOP_MODE_NOW);
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_TRUE(Eventually([&] { return groups().empty(); }));

  // A worker ends by itself while no agent runs, and leaves a process.
  const Key second = {"job-b", 1, 0};
  const ProcessIdentity worker = RunWorker(As(kBob, second, 1000000));
  KillAgent();
  ASSERT_OK(SignalProcess(worker, SIGKILL));
  waitpid(worker.pid, nullptr, 0);
  EXPECT_EQ(groups().size(), 1u) << "its sleeper";
  StartAgent();
  ASSERT_TRUE(WaitForEnd(second));
  EXPECT_TRUE(Eventually([&] { return groups().empty(); }));
}

// As under systemd with Delegate=yes.
TEST_F(UnixUsersTest, ByDefaultTheAgentsOwnCgroupIsTakenIfItMayBe) {
  const RealCgroup real("own-test");
  if (!real.usable()) GTEST_SKIP() << "root cannot make cgroups of version 2 here";
  std::vector<std::string> command = AgentCommand();
  command.insert(command.begin(), {command[0], "exec-as", "-", "-", "-", real.path()});
  const auto agent = Spawn({.argv = command,
                            .environment = {{"PATH", "/usr/bin:/bin"}},
                            .output = folder_ / "agent.log"});
  ASSERT_OK(agent);
  agent_ = *agent;
  const ProcessIdentity worker = RunWorker(As(kAda, kJob, 1000000));
  EXPECT_THAT(AgentLog(), HasSubstr(absl::StrCat("cgroups of their own in ", real.path())));
  EXPECT_THAT(*ReadWholeFile(absl::StrCat("/proc/", worker.pid, "/cgroup")),
              HasSubstr("-job-a-g1-r0\n"));
  coordinator_.SetStop(kJob, v1::STOP_MODE_NOW);
  ASSERT_TRUE(WaitForEnd(kJob));
  KillAgent();
}

TEST_F(UnixUsersTest, ADirectoryOfUsersThatIsSlowDelaysNoHeartbeat) {
  const fs::path answers = folder_ / "answers";
  StartAgent({{"LD_PRELOAD", TestFile("slow_directory.so")},
              {"NSA_DIRECTORY_ANSWERS", answers.string()},
              {"ASAN_OPTIONS", "verify_asan_link_order=0"}});
  const v1::WorkerAssignment assignment = As(kAda, kJob, 1000000);
  coordinator_.Want(assignment);
  ASSERT_TRUE(coordinator_.WaitForState(kJob, v1::WorkerObservation::STATE_STARTING));
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(coordinator_.Observation(kJob).pid(), 0);

  // Another is no longer wanted before the directory has answered: it never runs.
  const Key other = {"job-b", 1, 0};
  coordinator_.Want(As(kAda, other, 1000000));
  ASSERT_TRUE(coordinator_.WaitForState(other, v1::WorkerObservation::STATE_STARTING));
  coordinator_.Unwant(other);
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());

  std::ofstream(answers) << "";
  RunWorker(assignment);
  ASSERT_TRUE(coordinator_.WaitForState(other, v1::WorkerObservation::STATE_UNSPECIFIED));
  EXPECT_EQ(coordinator_.Log(other), "");
  EXPECT_FALSE(fs::exists(Dir(other).path)) << "no run folder was made";
}

}  // namespace
}  // namespace nsa

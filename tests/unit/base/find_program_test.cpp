// Search for a program: what execvp() would execute.
#include "base/find_program.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace gdx {
namespace find_program_test {

namespace fs = std::filesystem;

// Two folders of programs that exit with a status of their own, and the second as the current one.
class FindProgram : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "gdx-programs-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    for (const char* const name : {"first", "second"}) fs::create_directory(folder_ + "/" + name);
    before_ = fs::current_path();
    fs::current_path(folder_ + "/second");
    write("first/gdx-a", 1, 0755);
    write("second/gdx-a", 2, 0755);
    write("first/gdx-b", 3, 0644);
    write("second/gdx-b", 4, 0755);
    fs::create_directory(folder_ + "/first/gdx-c");
    write("second/gdx-c", 5, 0755);
  }
  void TearDown() override {
    if (before_.empty()) return;
    fs::current_path(before_);
    setenv("PATH", path_.c_str(), 1);
    fs::remove_all(folder_);
  }
  void write(const std::string& name, int status, mode_t mode) const {
    std::ofstream(folder_ + "/" + name) << "#!/bin/sh\nexit " << status << "\n";
    chmod((folder_ + "/" + name).c_str(), mode);
  }
  // Returns the exit status of what execvp() takes; 127: nothing.
  static int executed(const std::string& name) {
    const pid_t child = fork();
    if (child == 0) {
      execlp(name.c_str(), name.c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  }

  std::string folder_;
  fs::path before_;
  const std::string path_ = std::getenv("PATH") == nullptr ? "/bin:/usr/bin" : std::getenv("PATH");
};

TEST_F(FindProgram, finds_what_execvp_executes) {
  const std::string both = folder_ + "/first:" + folder_ + "/second";
  for (const std::string& path : {both, folder_ + "/first:", ":" + folder_ + "/first",
                                  folder_ + "/first::/nowhere", std::string("/nowhere"), std::string()}) {
    setenv("PATH", path.c_str(), 1);
    for (const char* const name : {"gdx-a", "gdx-b", "gdx-c", "gdx-none", "./gdx-a", "../first/gdx-a"}) {
      const std::string found = find_program(name);
      EXPECT_EQ(found.empty() ? 127 : executed(found), executed(name)) << name << " in '" << path << "'";
    }
  }
  setenv("PATH", both.c_str(), 1);
  EXPECT_EQ(executed("gdx-a"), 1) << "the folder of tests lets no program run: set TMPDIR to another";
  unsetenv("PATH");
  EXPECT_EQ(find_program("sh"), "/bin/sh");
  EXPECT_EQ(find_program("gdx-a"), "");
}

}  // namespace find_program_test
}  // namespace gdx

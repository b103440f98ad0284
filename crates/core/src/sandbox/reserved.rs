//! Names of files that programs on the host read without being asked.

use super::{SandboxError, SandboxPath};

/// Names of files and directories that configure version control, editors, shells, SSH, package managers, CI and agents,
/// in lower case.
const RESERVED: &[&str] = &[
    ".git",
    "git~1",
    ".gitmodules",
    ".githooks",
    ".husky",
    ".pre-commit-config.yaml",
    "lefthook.yml",
    ".lefthook.yml",
    "lefthook-local.yml",
    ".lefthook-local.yml",
    ".hg",
    ".svn",
    ".vscode",
    ".idea",
    ".devcontainer",
    ".devcontainer.json",
    ".zed",
    ".exrc",
    ".vimrc",
    ".nvim.lua",
    ".nvimrc",
    ".dir-locals.el",
    ".envrc",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".ssh",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".cargo",
    ".mise.toml",
    "mise.toml",
    ".tool-versions",
    ".github",
    ".gitlab-ci.yml",
    ".circleci",
    ".travis.yml",
    ".drone.yml",
    ".woodpecker",
    ".woodpecker.yml",
    ".woodpecker.yaml",
    ".buildkite",
    ".appveyor.yml",
    "azure-pipelines.yml",
    "bitbucket-pipelines.yml",
    "jenkinsfile",
    ".claude",
    ".codex",
    ".cursor",
    ".gemini",
    "gemini.md",
    "agents.md",
    "claude.md",
    "mcp.json",
    ".mcp.json",
    "cantle.toml",
    "cantle-result.json",
    "cantle-history.json",
    "cantle-unfinished",
];

/// Returns the first component of a path that is reserved, in any case: an output file of that name could run code
/// on the host or configure its programs.
///
/// ```
/// use cantle_core::sandbox::reserved_name;
///
/// assert_eq!(reserved_name("src/.Git/hooks/pre-commit"), Some(".Git"));
/// assert_eq!(reserved_name("git/report.md"), None);
/// ```
pub fn reserved_name(path: &str) -> Option<&str> {
    path.split('/').find(|component| {
        // Some file systems drop these characters.
        let name: String = component.chars().filter(char::is_ascii).collect();
        let name = name.trim_end_matches(['.', ' ']).to_ascii_lowercase();
        name.starts_with(".cantle")
            || name.ends_with(".code-workspace")
            || RESERVED.contains(&&*name)
    })
}

/// Returns the text of a path, unless it has a reserved name.
pub(super) fn check_reserved(path: &SandboxPath) -> Result<String, SandboxError> {
    let text = path.to_string();
    match reserved_name(&text) {
        Some(name) => Err(SandboxError::invalid_input(format!(
            "`{name}` is reserved: programs on the host read such files"
        ))),
        None => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_reserved_as_file_systems_read_them() {
        for path in [
            ".git/hooks/pre-commit",
            "a/.GIT./config",
            ".g\u{200c}it/config",
            "git~1/config",
            "cantle.toml",
            "./Cantle.TOML ",
            ".cantle-0/x",
            "docs/AGENTS.md",
            "/work/.envrc",
            "ci/Jenkinsfile",
            "x.code-workspace",
            "lefthook.yml",
            ".ssh/authorized_keys",
            "web/.yarnrc.yml",
        ] {
            assert!(reserved_name(path).is_some(), "{path}");
        }
        for path in [
            "report.md",
            ".gitignore",
            "git/x",
            "cantle.toml.txt",
            "a/.github.md",
            "",
        ] {
            assert_eq!(reserved_name(path), None, "{path}");
        }
    }
}

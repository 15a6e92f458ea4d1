package main

import (
	"crypto"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/internal/command"
)

// passwordVariable is cosign's variable too.
const passwordVariable = "COSIGN_PASSWORD"

func keyCommand() *cobra.Command {
	cmd := command.Group(&cobra.Command{Use: "key", Short: "Work with keys for signatures"})
	cmd.AddCommand(keyGenerate())
	return cmd
}

func keyGenerate() *cobra.Command {
	var kind string
	cmd := &cobra.Command{
		Use: "generate NAME", Short: "Generate a pair of keys for signing images",
		Long: `Generate a pair of keys for signing images. The signer uses the private key NAME.key,
encrypted with a password. Engines verify signatures with the public key NAME.pub. Cosign
reads both files. fre asks for the password, or takes the password from
` + passwordVariable + `, which may be empty.`,
		Example: `  fre key generate team`,
		Args:    command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, names []string) error {
			if kind != signature.KindECDSA && kind != signature.KindEd25519 {
				return command.Usage(fmt.Errorf("--type must be %s or %s, not %q", signature.KindECDSA, signature.KindEd25519, kind))
			}
			password, err := readPassword(cmd, "password for "+names[0]+".key: ", true)
			if err != nil {
				return err
			}
			private, public, err := signature.Generate(kind, password)
			if err != nil {
				return err
			}
			if err := writeNew(names[0]+".key", private, 0o600); err != nil {
				return err
			}
			if err := writeNew(names[0]+".pub", public, 0o644); err != nil {
				return errors.Join(err, os.Remove(names[0]+".key"))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s.key\n%s.pub\n", names[0], names[0])
			return nil
		},
	}
	cmd.Flags().StringVar(&kind, "type", signature.KindECDSA, "`kind` of key: ecdsa (P-256) or ed25519")
	return cmd
}

// writeNew never replaces a key.
func writeNew(name string, b []byte, mode os.FileMode) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// readPassword returns the password of the environment, or asks at a terminal, twice for a new
// password.
func readPassword(cmd *cobra.Command, prompt string, twice bool) ([]byte, error) {
	if s, ok := os.LookupEnv(passwordVariable); ok {
		return []byte(s), nil
	}
	in := asTerminal(cmd.InOrStdin())
	if in == nil {
		return nil, command.Usage(fmt.Errorf("cannot ask for the password, because standard input is no terminal: set %s, empty for no password", passwordVariable))
	}
	ask := func(prompt string) ([]byte, error) {
		fmt.Fprint(cmd.ErrOrStderr(), prompt)
		defer fmt.Fprintln(cmd.ErrOrStderr())
		return term.ReadPassword(int(in.Fd()))
	}
	password, err := ask(prompt)
	if err != nil || !twice {
		return password, err
	}
	again, err := ask("repeat the password: ")
	if err == nil && string(again) != string(password) {
		err = errors.New("the two passwords differ")
	}
	return password, err
}

// signKey reads the private key of --sign and --key. The key stays in this process.
func signKey(cmd *cobra.Command, file string) (crypto.Signer, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, signature.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	var password []byte
	if signature.Encrypted(b) {
		if password, err = readPassword(cmd, "password for "+file+": ", false); err != nil {
			return nil, err
		}
	}
	key, err := signature.ParsePrivate(b, password)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", file, err)
	}
	return key, nil
}

// sign signs the digest of an image in the repository and has the engine store the signature beside
// the image.
func sign(cmd *cobra.Command, cl *client.Client, key crypto.Signer, repository, digest string, auth *api.RegistryAuth) error {
	payload := signature.Payload(repository, digest)
	sig, err := signature.Sign(key, payload)
	if err != nil {
		return err
	}
	return cl.Images().Sign(cmd.Context(), api.SignRequest{
		Ref: repository + "@" + digest, Payload: string(payload), Signature: base64.StdEncoding.EncodeToString(sig), Auth: auth,
	})
}

func imageSign(c *cli) *cobra.Command {
	var file string
	var a authFlags
	cmd := &cobra.Command{
		Use: "sign REFERENCE --key FILE", Short: "Sign an image in its registry",
		Long: `Sign an image in its registry with a private key from fre key generate or from cosign. The
signature is stored beside the image, in the same place as cosign's. An engine checks
signatures at a pull if its configuration requires signatures. See docs/images.md.`,
		Example: `  fre image sign registry.example.org/team/hello:1.0 --key team.key`,
		Args:    command.Args(cobra.ExactArgs(1)),
		RunE: command.Interruptible(func(cmd *cobra.Command, refs []string) error {
			if file == "" {
				return command.Usage(errors.New("--key is missing: fre key generate creates a key"))
			}
			auth, err := a.read(cmd, refs[0])
			if err != nil {
				return err
			}
			key, err := signKey(cmd, file)
			if err != nil {
				return err
			}
			cl := c.client()
			defer cl.Close()
			ref, err := cl.Images().Resolve(cmd.Context(), api.ResolveRequest{Ref: refs[0], Auth: auth})
			if err != nil {
				return err
			}
			repository := signature.Repository(ref)
			if err := sign(cmd, cl, key, repository, ref[len(repository)+1:], auth); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "signed %s\n", ref)
			return nil
		}),
	}
	cmd.Flags().StringVar(&file, "key", "", "`file` with the private key; fre asks for its password, or takes the password from "+passwordVariable)
	a.flags(cmd)
	return cmd
}
